"""What a sweep came to: a table of its trials, the best one's settings, curves with hyper-parameters, and a page."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.config import Config
from ray_adaplr.core.scores import LABEL_FREE
from ray_adaplr.errors import RunFailed
from ray_adaplr.report.tensorboard import write_outcome
from ray_adaplr.storage import layout
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import Row
from ray_adaplr.storage.ownership import clear
from ray_adaplr.storage.run import Run

SHOWN = 4  # decimals of a score; trials that are equal to so many have tied


@dataclass(frozen=True)
class Conclusion:
    """What a sweep came to."""

    rows: list[Row]  # one per trial
    best: Row  # the best trial's
    tied: list[str]  # trials with the same score as the best, itself included, if there are others
    chosen: str  # whose settings best.toml holds, in words

    def table(self) -> str:
        """All trials as text, the best first."""
        names = varied(self.rows)
        lines = [["trial", *names, "score", "epochs", ""]]
        for row in sorted(self.rows, key=lambda row: (row is not self.best, row["trial"])):
            score = "-" if row["score"] is None else f"{row['score']:.{SHOWN}f}"
            mark = "best" if row is self.best else "tied" if row["trial"] in self.tied else row["error"] or ""
            settings = [str(row["settings"].get(name, "-")) for name in names]
            lines.append([row["trial"], *settings, score, str(row["epochs"]), mark[:60]])
        widths = [max(map(len, column)) for column in zip(*lines)]
        return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths)).rstrip() for line in lines)


def conclude(
    folder: Folder, config: Config, metric: str, more_is_better: bool, errors: Mapping[str, BaseException | None]
) -> Conclusion:
    """Write results.parquet, best.toml, sweep.html and every trial's hyper-parameters.

    `config` has the sweep's own settings, resolved: what a tie falls back to. RunFailed, once all files are written,
    when a trial has no metrics or none has ended.
    """
    from ray_adaplr.report.sweep import SweepOutcome, sweep_page  # brings in matplotlib

    rows = [trial_row(folder, number, metric, error) for number, error in sorted(errors.items())]
    ended = [row for row in rows if row["finished"] and row["score"] is not None]
    result = _choose(rows, ended, config, more_is_better) if ended else None
    _write_table(folder, rows)
    if result:
        best = folder / f"{layout.TRIALS}/{result.best['trial']}"
        folder.write(layout.BEST, config.to_toml() if result.chosen == OWN else best.read(layout.CONFIG))
    choice = (result.best, metric, result.tied, result.chosen) if result else (None, metric)
    folder.write(layout.SWEEP_PAGE, sweep_page(SweepOutcome(Path(folder.base).name, rows, varied(rows), *choice)))
    for row in rows:
        place = folder / f"{layout.TRIALS}/{row['trial']}"
        if place.is_local and row["epochs"]:  # beside the curves that the trial itself wrote
            write_outcome(place, row["settings"], row)
        if row["error"] is None:
            clear(place, layout.TRAINING_FILES)
    silent = [row for row in rows if not row["epochs"]]
    if silent:
        raise RunFailed(
            f"{len(silent)} of {len(rows)} trials have no metrics ({', '.join(row['trial'] for row in silent)}; the "
            f"first: {silent[0]['error'] or 'it never started'}); the others are in {folder.uri}, and --resume tries "
            "these again"
        )
    if result is None:
        raise RunFailed(f"no trial has come to its end; see {layout.RESULTS} in {folder.uri}; --resume tries again")
    return result


OWN = "the sweep itself, as all trials are equal"


def _choose(rows: list[Row], ended: list[Row], config: Config, more_is_better: bool) -> Conclusion:
    """The best trial. Of several that tie, the one nearest to the sweep's own settings: a tie is no reason to change.

    Where all trials tie, the sweep says nothing, and its own settings stay.
    """
    sign = 1 if more_is_better else -1
    top = max(round(sign * row["score"], SHOWN) for row in ended)
    tied = [row for row in ended if round(sign * row["score"], SHOWN) == top]
    own = config.model_dump()

    def changes(row: Row) -> int:
        return sum(row["settings"][name] != value for name, value in own.items())

    best = min(tied, key=changes) if len(tied) > 1 else tied[0]
    numbers = [row["trial"] for row in tied] if len(tied) > 1 else []
    if len(tied) == len(ended) > 1:
        return Conclusion(rows, best, numbers, OWN)
    why = ", the nearest of those that tie to the sweep's own settings" if numbers else ""
    return Conclusion(rows, best, numbers, f"trial {best['trial']}{why}")


def trial_row(folder: Folder, number: str, metric: str, error: BaseException | None) -> Row:
    """A trial's settings and its last epoch; scores are empty when it has none."""
    run = Run((folder / f"{layout.TRIALS}/{number}").uri)
    lines = [line for line in run.read_metrics() if line["stage"] == "refine"]
    last = lines[-1] if lines else {}
    settings = Config.load_text(run.folder.read(layout.CONFIG).decode()).model_dump() if run.done(layout.CONFIG) else {}
    oracle = 1 - last["noise"] if "noise" in last else None
    return {
        "trial": number,
        "settings": settings,
        "score": oracle if metric == layout.ORACLE else last.get(metric),
        **{name: last.get(name) for name in ("gamma", *LABEL_FREE)},
        "epochs": len(lines),
        "lines": lines,
        "finished": run.done(layout.LABELS) and error is None,
        "error": None if error is None else _last_words(error),
        "seconds": sum(line["seconds"] for line in lines),
        layout.DIAGNOSTIC: oracle,
    }


def varied(rows: list[Row]) -> list[str]:
    """The settings that differ between trials."""
    known = [row["settings"] for row in rows if row["settings"]]
    return [name for name in (known[0] if known else {}) if any(k[name] != known[0][name] for k in known)]


def _write_table(folder: Folder, rows: list[Row]) -> None:
    names = list(dict.fromkeys(["alpha", "n_rl", "n_e", *varied(rows)]))
    flat = []
    for row in rows:
        settings = {name: row["settings"].get(name) for name in names}
        settings = {k: v if v is None or isinstance(v, bool | int | float) else str(v) for k, v in settings.items()}
        figures = {k: v for k, v in row.items() if k not in ("trial", "settings", "lines")}
        flat.append({"trial": row["trial"], **settings, **figures})
    table = pa.Table.from_pylist(flat)
    note = {layout.DIAGNOSTIC: "share of right labels by the ground truth: a diagnostic, not what trials are judged by"}
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(note), buffer)
    folder.write(layout.RESULTS, buffer.getvalue())


def _last_words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
