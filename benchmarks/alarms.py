"""Where the alarms of `core/signs.py` fire rightly and wrongly: `python -m benchmarks alarms`.

On recorded runs (the shares of sure labels, and of labels that changed in one epoch), and on small runs with digits
that come inside pip packages: as shipped, with rare and absent classes, a weak source, and settings that do harm.
Writes results/alarms.json and alarms.md; about four minutes of one core.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import RESULTS, command_line
from benchmarks.provenance import provenance
from ray_adaplr.config import PRESETS, Config, ScalingConfig
from ray_adaplr.core import signs
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.stages.summary import label_summary

Row = dict[str, Any]
CLEARLY = 0.02  # a smaller change of the noise is neither gain nor harm
USELESS = 0.5  # labels of which more are wrong, though no more than before
LOCAL = ScalingConfig(engine="local", checkpoint_every=0)
ALL = list(range(10))
SMALL = {"epochs": 12, "n_e": 2, "n_a": 4, "warm_start_epochs": 5, "warmup": 2}
UNGUARDED = {"warm_start": "off", "prior": "off", "diversity": 0.0, "on_harm": "off", "gamma_per_class": False}
FAST = {"alpha": 0.5, "lr": 0.02, "lr_head": 0.02, "n_a": 1}
UNEVEN = PRESETS["uneven"]
UNIFORM = {"guards": "on", "prior_strength": 1.0, "warm_start": "off"}
WORDS = {  # alarm -> how its sentence is known
    "hardly any sure": "Hardly any label is sure",
    "sure ones swapped": "of the sure labels are not what",
    "few classes": "few classes",
    "class gone": "no image has that label now",
    "at once": "changed at once",
    "dying out": "dying out",
    "rare class": "pulls towards classes of equal size",
}
# name -> classes of the model, images per class of the target by their share, source images, settings
CASES: dict[str, tuple[list[int], dict[int, float], int, Row]] = {
    "as shipped": (ALL, {}, 2000, {}),
    "weak source": (ALL, {}, 150, {}),
    "very weak source": (ALL, {}, 40, {}),
    "weak source, soon sure": (ALL, {}, 150, {"alpha": 0.5}),
    "very weak source, soon sure": (ALL, {}, 40, {"alpha": 0.4}),
    "three of ten classes": (ALL, {c: 0.0 for c in ALL if c > 2}, 2000, {}),
    "two classes": ([3, 8], {}, 400, {}),
    "two classes, 90 : 10": ([3, 8], {8: 0.11}, 400, {}),
    "two classes, 96 : 4": ([3, 8], {8: 0.04}, 400, {}),
    "two classes, 90 : 10, preset uneven": ([3, 8], {8: 0.11}, 400, UNEVEN),
    "two classes, 96 : 4, preset uneven": ([3, 8], {8: 0.04}, 400, UNEVEN),
    "three classes": ([3, 5, 8], {}, 600, {}),
    "no guards": (ALL, {}, 150, {**UNGUARDED, "alpha": 0.5}),
    "no guards, fast": (ALL, {}, 150, {**UNGUARDED, **FAST, "alpha": 0.3, "warmup": 0}),
    "two classes, no guards, fast": ([3, 8], {}, 40, {**UNGUARDED, **FAST}),
    "90 : 10 under a uniform prior": ([3, 8], {8: 0.11}, 400, UNIFORM),
    "hardly trained": (ALL, {}, 150, {"lr": 1e-5, "lr_head": 1e-5, "warm_start": "off", "epochs": 6}),
    "paper's rule, few epochs": (ALL, {}, 2000, {**UNGUARDED, "fresh_head": True, "alpha": 0.9, "epochs": 4}),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the cases, count, and write both files."""
    parser = command_line("alarms", __doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name holds this; writes nothing")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as made:
        for name in CASES:
            for seed in (0, 1, 2):
                if options.only in name:
                    rows.append(run_case(name, seed, Path(made)))
                    print(json.dumps(rows[-1]), flush=True)
    if options.only:
        return
    counts = {"recorded": list(recorded_counts()), "small runs": list(small_counts(rows))}
    content = {"provenance": provenance(), "counts": counts, "rows": rows}
    (RESULTS / "alarms.json").write_text(json.dumps(content, indent=1) + "\n")
    (RESULTS / "alarms.md").write_text(as_text(counts))


def run_case(name: str, seed: int, work: Path) -> Row:
    """One small run, and which alarms it raised."""
    classes, shares, source_images, changes = CASES[name]
    place = work / f"{name}-{seed}"
    labelled = subset("mnist", classes, {}, source_images, place)
    target = subset("optdigits", classes, shares, 700, place)
    spec = ModelSpec(num_classes=len(classes), channels=1, image_size=(16, 16), classes=tuple(labelled.classes))
    config = Config(seed=seed, pretrain_epochs=4, **{**SMALL, **changes})
    source = pretrain(SourcePlan(labelled, str(place / "source"), spec, config, LOCAL))
    plan = RunPlan([source], target, str(place / "run"), config, LOCAL)
    result = adapt(plan, until="refine")
    table = result.labels
    before, after, sure = (table[key].to_numpy() for key in ("initial_label", "refined_label", "high_confidence"))
    change = signs.label_change(before, after, sure, len(classes))
    told = result.run.read_inferred([source]).warnings  # before anything trained
    said = told + signs.warnings(result.metrics, change, target.classes)
    noise = label_summary(plan, result.run)
    reassigned = max(line["reassigned"] for line in result.metrics if line["stage"] == "refine")
    mixed = signs.effective_classes(change.after)
    return {
        **{"case": name, "seed": seed, "before": noise["noise_before"], "after": noise["noise_after"]},
        **{"sure": change.sure, "sure_changed": change.sure_changed, "reassigned": reassigned},
        **{"mixed": mixed, "mixed_of_before": mixed / signs.effective_classes(change.before)},
        "alarms": [alarm for alarm, words in WORDS.items() if any(words in sentence for sentence in said)],
    }


def subset(domain: str, classes: list[int], shares: dict[int, float], most: int, work: Path) -> ImageStore:
    """Some classes of a demo domain, at most `most` images, of each class the share that is asked for."""
    whole = demo_domain(domain, work / f"{domain}-whole")
    truth = np.asarray(whole.ground_truth())
    rows = np.flatnonzero(np.isin(truth, classes))[:most]
    kept = [rows[truth[rows] == c] for c in classes]
    kept = [of_class[: round(shares.get(c, 1.0) * len(of_class))] for c, of_class in zip(classes, kept, strict=True)]
    rows = np.sort(np.concatenate(kept))
    names, labels = [str(c) for c in classes], np.searchsorted(classes, truth[rows])
    ids = [str(row) for row in rows]
    return write_store(work / domain, [(ids, whole.read(rows))], classes=names, domain=domain, truth=labels)


def verdict(before: float, after: float) -> str:
    """What became of the labels."""
    if after > before + CLEARLY:
        return "harm"
    return "useless" if after > USELESS else "gain" if after < before - CLEARLY else "same"


def counted(alarm: str, fired: list[tuple[bool, str]]) -> Row:
    """How often an alarm fired, by what became of the labels, and how often it was silent."""
    kinds = ("harm", "useless", "same", "gain")
    return {
        "alarm": alarm,
        "fired": {kind: sum(on and what == kind for on, what in fired) for kind in kinds},
        "silent": {kind: sum(not on and what == kind for on, what in fired) for kind in kinds},
    }


def recorded_counts() -> Iterator[Row]:
    """What can be counted on the runs under results/: their shares of sure labels and of changed ones."""
    rows = []
    for file in ("ablations", "scores", "accuracy", "accuracy-quick", "accuracy-large"):
        rows += json.loads((RESULTS / f"{file}.json").read_text())["rows"]
    rows = [row for row in rows if row.get("method", "adaplr") in ("adaplr", "adaplr_paper", "adaplr_at_shot_time")]
    ends = [(row, verdict(row["inferred_noise"], row["refined_noise"])) for row in rows]
    for limit in (0.05, signs.HARDLY_SURE, 0.2, 0.3):
        yield counted(f"sure labels below {limit:.0%}", [(row["hcs_share"] < limit, what) for row, what in ends])
    known = [(row["by_epoch"], what) for row, what in ends if "reassigned" in row.get("by_epoch", {})]
    for limit in (0.3, signs.AT_ONCE, 0.5):
        found = [(max(epochs["reassigned"]) > limit, what) for epochs, what in known]
        yield counted(f"changed in one epoch above {limit:.0%}", found)


def small_counts(rows: list[Row]) -> Iterator[Row]:
    """Each alarm as it is, and the two that the recorded runs do not show at other thresholds."""
    ends = [(row, verdict(row["before"], row["after"])) for row in rows]
    for alarm in WORDS:
        yield counted(alarm, [(alarm in row["alarms"], what) for row, what in ends])
    for limit in (0.3, 0.5, 0.7):
        yield counted(
            f"sure ones swapped above {limit:.0%}", [(row["sure_changed"] > limit, what) for row, what in ends]
        )
    for limit in (0.4, 0.6, 0.8):
        found = [(row["mixed_of_before"] < limit, what) for row, what in ends]
        yield counted(f"as mixed as {limit:.0%} of before", found)


def as_text(counts: dict[str, list[Row]]) -> str:
    """Tables for people."""
    lines = ["# Alarms", "", f"Harm and gain: the noise rose or fell by more than {CLEARLY:g}.", ""]
    lines[2] += f" Useless: it did not rise, but more than {USELESS:.0%} of the labels are wrong in the end."
    for title, rows in counts.items():
        lines += [f"## {title.capitalize()}", "", "| alarm | fired: harm, useless, same, gain | silent: the same |"]
        lines += ["| --- | --- | --- |"]
        for row in rows:
            cells = [", ".join(str(count) for count in row[part].values()) for part in ("fired", "silent")]
            lines.append(f"| {row['alarm']} | {cells[0]} | {cells[1]} |")
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"
