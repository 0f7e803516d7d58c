"""What a finished run came to: summary.json, report.html and TensorBoard's table of settings."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ray_adaplr import __version__
from ray_adaplr.config import Config
from ray_adaplr.core import signs
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.store import ImageStore
from ray_adaplr.report.tensorboard import BoardWriter
from ray_adaplr.stages.run import SHIPPED, SUMMARY, Run


def summarise(
    run: Run,
    store: ImageStore,
    spec: ModelSpec,
    scores: dict[str, Any] | None,
    config: Config,
    warnings: list[str],
    seconds: dict[str, float],
) -> None:
    """Write the run's last files. Accuracy is in them only where the store has ground truth.

    Args:
        run: the run, refined and distilled.
        store: the target images.
        spec: of the target model.
        scores: the target model's, where the store has ground truth.
        config: the run's settings.
        warnings: what the start had to say.
        seconds: by stage.
    """
    table, lines, truth = run.read_labels(), run.read_metrics(), store.ground_truth()
    first, refined = table["initial_label"].to_numpy(), table["refined_label"].to_numpy()
    sure = table["high_confidence"].to_numpy()
    summary: dict[str, Any] = dict.fromkeys(
        ("inferred", "refined", "target", "noise_before", "noise_after", "hcs_noise")
    )
    if truth is not None and scores is not None:
        noise_before, noise_after = float((first != truth).mean()), float((refined != truth).mean())
        summary |= {
            "inferred": 1 - noise_before,
            "refined": 1 - noise_after,
            "target": scores["accuracy"],
            "target_per_domain": scores["per_domain"],
            "noise_before": noise_before,
            "noise_after": noise_after,
            "hcs_noise": float((refined != truth)[sure].mean()) if sure.any() else None,
        }
    summary |= {
        "changed_share": float((first != refined).mean()),
        "hcs_share": float(sure.mean()),
        "warnings": [*warnings, *signs.warnings(lines)],
        "seconds": {stage: round(value, 2) for stage, value in seconds.items()},
        "seed": config.seed,
        "num_images": len(store),
        "num_classes": spec.num_classes,
        "classes": store.classes or list(spec.classes),
        "versions": versions(),
        "command": run.folder.read_json("run.json")["command"],
    }
    if run.done(SHIPPED):
        summary["shipped"] = run.folder.read_json(SHIPPED)
    run.folder.write_json(SUMMARY, summary)
    write_page(run)
    if run.folder.is_local:
        board = BoardWriter(run.folder.path("tensorboard"), config.epochs)
        board.finish(config.model_dump(), summary)
        board.close()


def write_page(run: Run) -> None:
    """Write report.html into the run's folder, wherever that is."""
    from ray_adaplr.report.page import report_page  # brings in matplotlib, which nothing else here needs

    run.folder.write("report.html", report_page(run.folder.uri))


def versions() -> dict[str, str]:
    """Versions of what the result depends on."""
    found = {"python": platform.python_version()}
    for name in ("ray-adaplr", "ray", "torch", "torchvision", "numpy", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = __version__ if name == "ray-adaplr" else "not installed"  # run from its sources
    return found
