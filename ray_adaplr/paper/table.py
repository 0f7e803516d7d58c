"""The table that `ray-adaplr paper` prints and writes: our accuracies, the paper's, and the other methods'."""

from statistics import mean, stdev
from typing import Any

from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.evaluate import evaluate
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import TARGET_MODEL
from ray_adaplr.storage.machine import versions
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.run_reader import Record

STAGES = ("inferred", "refined", "target")
ALL = "all"  # the images of all columns together; of classes, the mean of their figures
NONE = "–"
RESULTS = "results.json"
Figures = dict[str, dict[str, float | None]]  # accuracy by stage, then by column: a target domain or a class


def accuracies(run: Run, like: Classifier, target: ImageStore, test: ImageStore, per_class: bool = False) -> Figures:
    """What a finished run came to, in percent: its labels on `target`, its model on `test`, by domain or by class.

    `like` is the architecture of its model; `target` has ground truth. By class, `ALL` is the mean over the classes
    that have images: VisDA-C's own measure.
    """
    truth = target.ground_truth()
    if truth is None:
        raise InputError(f"{', '.join(target.paths)} has no ground truth to compare with")
    groups = {name: target.domain_index == i for i, name in enumerate(target.domains)}
    if per_class:
        groups = {name: truth == c for c, name in enumerate(target.classes)}
    found: Figures = {}
    labels = run.read_labels()
    for stage, column in (("inferred", "initial_label"), ("refined", "refined_label")):
        right = labels[column].to_numpy() == truth
        found[stage] = {name: _percent(right[rows].mean()) if rows.any() else None for name, rows in groups.items()}
        found[stage][ALL] = _percent(right.mean())
    scores = evaluate(load_model((run.folder / TARGET_MODEL).uri, like=like), test)
    by_column = scores["per_class" if per_class else "per_domain"]
    found["target"] = {name: None if value is None else _percent(value) for name, value in by_column.items()}
    found["target"][ALL] = _percent(scores["accuracy"])
    if per_class:
        for figures in found.values():
            known = [value for name, value in figures.items() if name != ALL and value is not None]
            figures[ALL] = round(mean(known), 2)
    return found


def rows_beside(about: Record, runs: list[Figures], published: Record | None) -> list[Record]:
    """One row per column (and one for all together, where there are several), each with our figures and the published.

    `about` is what every row says of the task, `runs` has the figures of each seed, `published` is from `paper_row`.
    """
    columns = [name for name in runs[0]["inferred"] if name != ALL]
    rows = []
    for column in [*columns, ALL] if len(columns) > 1 else columns:
        stages = {}
        for stage in STAGES:
            values = [figures[stage][column] for figures in runs]
            known = [value for value in values if value is not None]
            paper, paper_sd = _published(published, stage, column)
            stages[stage] = {
                "mean": round(mean(known), 2) if known else None,
                "sd": round(stdev(known), 2) if len(known) > 1 else None,
                "values": values,
                "paper": paper,
                "paper_sd": paper_sd,
            }
        others: dict[str, float] = {}
        if published and column in published["columns"]:
            place = published["columns"].index(column)
            others = {name: figures[place] for name, figures in published["others"].items() if figures[place]}
        rows.append({**about, "on": column, **stages, "others": others})
    return rows


def _published(published: Record | None, stage: str, column: str) -> tuple[float | None, float | None]:
    """The paper's figure and its standard deviation."""
    if not published:
        return None, None
    figures, columns = published[stage], published["columns"]
    if column == ALL:
        combined = len(figures["values"]) == 1  # of several targets the paper gives one figure for the labels
        return figures["overall"], figures["sd"][0] if combined and figures["sd"] else None
    if len(figures["values"]) != len(columns):
        return None, None
    place = columns.index(column)
    return figures["values"][place], figures["sd"][place] if figures["sd"] else None


def table(rows: list[Record]) -> str:
    """Rows as Markdown, with columns of even width so that it can be read as it is."""
    head = ["task", "on", "images", "epochs", "minutes", "seeds"]
    for stage in STAGES:
        head += [stage, "paper"]
    lines = [[*head, "other methods"]]
    for row in rows:
        epochs = f"{row['epochs']} + {row['distill_epochs']}"
        line = [row["task"], row["on"], str(row["target_images"]), epochs, f"{row['minutes']:.0f}", str(row["seeds"])]
        for figure in (row[stage] for stage in STAGES):
            line += [_spread(figure["mean"], figure["sd"]), _spread(figure["paper"], figure["paper_sd"])]
        lines.append([*line, ", ".join(f"{name} {value}" for name, value in row["others"].items()) or NONE])
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(f"{cell:{w}}" for cell, w in zip(line, widths)) + " |" for line in lines)


def remarks(rows: list[Record]) -> str:
    """What is to be said of the rows: how the protocol was changed, and the runs' warnings."""
    told = [f"- {row['task']}, preset {row['preset']}: {remark}" for row in rows for remark in row["remarks"]]
    return "".join(f"{line}\n" for line in dict.fromkeys(told))


def write_results(out: str, benchmark: str, rows: list[Record]) -> None:
    """Put rows into `results.json` and `results.md`, in place of earlier ones of the same task and preset."""
    folder, new = Folder(out), {_key(row) for row in rows}
    earlier = folder.read_json(RESULTS)["rows"] if folder.exists(RESULTS) else []
    rows = [*(row for row in earlier if _key(row) not in new), *rows]
    scales = sorted({row["scale"] for row in rows})
    content = {"benchmark": benchmark, "unit": "accuracy in percent", "scales": scales, "versions": versions()}
    said = "" if scales == [1.0] else f", at scale {', '.join(f'{scale:g}' for scale in scales)} of images and epochs"
    page = (
        f"# {benchmark} beside the paper{said}\n\nAccuracy in percent, mean ± standard deviation over seeds. Inferred "
        "and refined: labels of the target's training images;\ntarget: the target model on its test images.\n\n"
        f"{table(rows)}\n\n{remarks(rows)}"
    )
    folder.write_json(RESULTS, {**content, "rows": rows})
    folder.write("results.md", page)


def _key(row: Record) -> tuple[Any, ...]:
    return row["task"], row["preset"], row["late_fusion"]


def _spread(value: float | None, sd: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.1f}" if sd is None else f"{value:.1f} ± {sd:.2f}"


def _percent(share: float) -> float:
    return round(100 * float(share), 2)
