r"""More rounds: a run's target model becomes the source of the next run on the same images.

    ray-adaplr paper digit5 --data DIR --preset robust --task mnist-mnistm --seeds 1 --set palette=0.5 \
        --set epochs=30 --set warm_start_epochs=20 --set distill_epochs=20 --out OUT
    python -m benchmarks rounds OUT/robust/mnist-mnistm/seed-0 --test OUT/stores/mnistm-test --set palette=0.5 \
        --set epochs=12 --set warm_start_epochs=10 --set distill_epochs=15

The first round is a run that has ended. Every later one is a run of its own beside it, in RUN-round-2 and so on, and a
killed one continues. Models are tested on a store with ground truth, which nothing trains on.
"""

from pathlib import Path

import torch

from benchmarks import RESULTS, command_line
from benchmarks.harness import Results, Row, run_adaplr, share_wrong, table
from ray_adaplr.cli.options import parse_setting
from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.evaluate import evaluate
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run


def first_round(run: Run, target: ImageStore) -> Row:
    """The figures of a run that has ended, as those of the later rounds."""
    labels, known = run.read_labels(), run.folder.read_json("summary.json")
    sure = labels["high_confidence"].to_numpy()
    return {
        "inferred_noise": known["noise_before"],
        "refined_noise": known["noise_after"],
        "hcs_share": float(sure.mean()),
        "hcs_noise": share_wrong(labels["refined_label"].to_numpy(), target, sure),
        "seconds": known["seconds"],
        "warnings": known["warnings"],
    }


def later_round(source: Classifier, target: ImageStore, out: Path, config: Config) -> tuple[Classifier, Row]:
    """Adapt what the round before came to."""
    run = run_adaplr(source, target, out, config, resume=True)
    assert run.target_model is not None
    figures = {**run.figures, "seconds": Run(out).folder.read_json("summary.json")["seconds"]}
    return run.target_model, figures


def shown(rows: list[Row]) -> str:
    """A line per round."""
    lines = []
    for row in rows:
        labels = f"{100 - 100 * row['inferred_noise']:.1f} → {100 - 100 * row['refined_noise']:.1f}"
        sure = f"{row['hcs_share']:.2f} / {row['hcs_noise']:.3f}"
        cells = [str(row["round"]), labels, sure, f"{100 * row['test_accuracy']:.1f}"]
        lines.append([*cells, f"{sum(row['seconds'].values()) / 60:.0f}"])
    return table(["round", "right labels, percent", "sure: share / noise", "target model, percent", "minutes"], lines)


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("rounds", __doc__)
    parser.add_argument("run", type=Path, help="a run that has ended")
    parser.add_argument("--test", required=True, type=Path, help="a store with ground truth")
    parser.add_argument("--rounds", type=int, default=3, help="with the first one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the later rounds")
    parser.add_argument("--out", type=Path, default=RESULTS / "rounds.json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    first, test, results = Run(options.run), ImageStore.open(str(options.test)), Results(options.out)
    target = ImageStore.open(*first.origin()["target"])
    task, model = options.run.parent.name, load_model(options.run / "target_model")
    # The model of the round before knows these very images.
    changes = {"on_no_shift": "adapt", **dict(map(parse_setting, options.set))}
    config = Config.load("robust", changes=changes)
    for number in range(1, options.rounds + 1):
        if number == 1:
            settings, figures = first.read_config(), first_round(first, target)
        else:
            out = options.run.with_name(f"{options.run.name}-round-{number}")
            settings, (model, figures) = config, later_round(model, target, out, config)
        figures["test_accuracy"] = evaluate(model, test)["accuracy"]
        results.add({"task": task, "round": number}, settings.model_dump(mode="json"), figures)
    print(shown([row for row in results.rows if row["task"] == task]))
