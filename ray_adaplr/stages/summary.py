"""What a finished run came to: summary.json, report.html and TensorBoard's table of settings."""

from dataclasses import replace
from typing import Any

from ray_adaplr.config import Config
from ray_adaplr.core import signs
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.store import ImageStore
from ray_adaplr.report.tensorboard import BoardWriter
from ray_adaplr.storage.layout import ORIGIN, REPORT, SHIPPED, SUMMARY, TENSORBOARD
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.versions import versions


def summarise(
    run: Run,
    store: ImageStore,
    spec: ModelSpec,
    scores: dict[str, Any] | None,
    config: Config,
    warnings: list[str],
    seconds: dict[str, float],
    figures: str,
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
        figures: the report's, by `draw_figures`.
    """
    summary = {
        **label_summary(run, store, spec),
        "target": scores and scores["accuracy"],
        **({"target_per_domain": scores["per_domain"]} if scores else {}),
        "warnings": [*warnings, *signs.warnings(run.read_metrics())],
        "seconds": {stage: round(value, 2) for stage, value in seconds.items()},
        "seed": config.seed,
        "versions": versions(),
        "command": run.folder.read_json(ORIGIN)["command"],
    }
    if run.done(SHIPPED):
        summary["shipped"] = run.folder.read_json(SHIPPED)
    run.folder.write_json(SUMMARY, summary)
    write_page(run, figures)
    if run.folder.is_local:
        board = BoardWriter(run.folder.path(TENSORBOARD), config.epochs)
        board.finish(config.model_dump(), summary)
        board.close()


def label_summary(run: Run, store: ImageStore, spec: ModelSpec) -> dict[str, Any]:
    """What became of the labels, by ground truth where the store has it."""
    table, truth = run.read_labels(), store.ground_truth()
    first, refined = table["initial_label"].to_numpy(), table["refined_label"].to_numpy()
    sure = table["high_confidence"].to_numpy()
    known: dict[str, Any] = dict.fromkeys(("inferred", "refined", "noise_before", "noise_after", "hcs_noise"))
    if truth is not None:
        before, after = float((first != truth).mean()), float((refined != truth).mean())
        known = {
            "inferred": 1 - before,
            "refined": 1 - after,
            "noise_before": before,
            "noise_after": after,
            "hcs_noise": float((refined != truth)[sure].mean()) if sure.any() else None,
        }
    return {
        **known,
        "changed_share": float((first != refined).mean()),
        "hcs_share": float(sure.mean()),
        "num_images": len(store),
        "num_classes": spec.num_classes,
        "classes": store.classes or list(spec.classes),
    }


def draw_figures(run: Run, store: ImageStore, spec: ModelSpec) -> str:
    """The figures of report.html; once labels are refined, nothing changes them any more."""
    from ray_adaplr.report.page import figures_section  # brings in matplotlib, which nothing else here needs
    from ray_adaplr.storage.run_reader import read_run

    return figures_section(replace(read_run(run.folder.uri), summary=label_summary(run, store, spec)))


def write_page(run: Run, figures: str | None = None) -> None:
    """Write report.html into the run's folder, wherever that is; figures are drawn unless they are given."""
    from ray_adaplr.report.page import report_page

    run.folder.write(REPORT, report_page(run.folder.uri, figures))
