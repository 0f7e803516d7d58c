"""What a sweep came to: a table of its trials, the best one's settings, curves with hyper-parameters, and a page."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from ray_adaplr.config import Config
from ray_adaplr.core.scores import LABEL_FREE
from ray_adaplr.errors import RunFailed, last_line
from ray_adaplr.report.card import line_of_labels
from ray_adaplr.report.tensorboard import write_outcome
from ray_adaplr.storage import layout
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import DECIMALS
from ray_adaplr.storage.ownership import clear
from ray_adaplr.storage.run import Run, as_parquet
from ray_adaplr.storage.run_reader import Record

if TYPE_CHECKING:
    from ray_adaplr.report.sweep import SweepOutcome


def conclude(
    folder: Folder, config: Config, metric: str, more_is_better: bool, errors: Mapping[str, BaseException | None]
) -> "SweepOutcome":
    """Write results.parquet, best.toml, sweep.html and every trial's hyper-parameters.

    `config` has the sweep's own settings, resolved: what a tie falls back to. RunFailed, once all files are written,
    when a trial has no metrics or none has ended.
    """
    from ray_adaplr.report.sweep import SweepOutcome, sweep_page  # brings in matplotlib

    rows = [trial_row(folder, number, metric, error) for number, error in sorted(errors.items())]
    ended = [row for row in rows if row["finished"] and row["score"] is not None]
    result = SweepOutcome(folder.name, metric, rows, varied(rows))
    _write_table(folder, rows)
    if ended:
        best, tied, chosen = choose(ended, config, more_is_better)
        result = replace(result, best=best, tied=tied, chosen=chosen)
        trial = folder / f"{layout.TRIALS}/{best['trial']}"
        folder.write(layout.BEST, config.to_toml() if chosen == OWN else trial.read(layout.CONFIG))
    folder.write(layout.SWEEP_PAGE, sweep_page(result))
    for row in rows:
        place = folder / f"{layout.TRIALS}/{row['trial']}"
        if place.is_local and row["epochs_run"]:  # beside the curves that the trial itself wrote
            write_outcome(place, row["settings"], row)
        if row["error"] is None:
            clear(place, layout.TRAINING_FILES)
    silent = [row for row in rows if not row["epochs_run"]]
    if silent:
        raise RunFailed(
            f"{len(silent)} of {len(rows)} trials have no metrics ({', '.join(row['trial'] for row in silent)}; the "
            f"first: {silent[0]['error'] or 'it never started'}); the others are in {folder.uri}, and --resume tries "
            "these again"
        )
    if not ended:
        raise RunFailed(f"no trial has come to its end; see {layout.RESULTS} in {folder.uri}; --resume tries again")
    return result


OWN = "the sweep itself, as all trials are equal"


def choose(ended: list[Record], config: Config, upwards: bool) -> tuple[Record, list[str], str]:
    """The best trial, the numbers of those that tie with it, and whose settings to take, in words.

    Of several that tie it is the one nearest to the sweep's own settings: a tie is no reason to change. Where all
    trials tie, the sweep says nothing, and its own settings stay.
    """
    sign = 1 if upwards else -1
    top = max(round(sign * row["score"], DECIMALS) for row in ended)
    tied = [row for row in ended if round(sign * row["score"], DECIMALS) == top]
    if len(tied) == 1:
        return tied[0], [], f"trial {tied[0]['trial']}"
    own = config.model_dump()
    best = min(tied, key=lambda row: sum(row["settings"][name] != value for name, value in own.items()))
    nearest = f"trial {best['trial']}, the nearest of those that tie to the sweep's own settings"
    return best, [row["trial"] for row in tied], OWN if len(tied) == len(ended) else nearest


def trial_row(folder: Folder, number: str, metric: str, error: BaseException | None) -> Record:
    """A trial's settings and the epoch that its labels are of; scores are empty when it has none."""
    run = Run((folder / f"{layout.TRIALS}/{number}").uri)
    lines = [line for line in run.read_metrics() if line["stage"] == "refine"]
    shipped = run.folder.read_json(layout.SHIPPED) if run.done(layout.SHIPPED) else None
    judged = line_of_labels(lines, shipped)
    settings = Config.load_text(run.folder.read(layout.CONFIG).decode()).model_dump() if run.done(layout.CONFIG) else {}
    oracle = 1 - judged["noise"] if "noise" in judged else None
    return {
        "trial": number,
        "settings": settings,
        "score": oracle if metric == layout.ORACLE else judged.get(metric),
        **{name: judged.get(name) for name in ("gamma", *LABEL_FREE)},
        "epochs_run": len(lines),
        "lines": lines,
        "finished": run.done(layout.LABELS) and error is None,
        "error": None if error is None else last_line(error),
        "seconds": sum(line["seconds"] for line in lines),
        layout.DIAGNOSTIC: oracle,
    }


def varied(rows: list[Record]) -> list[str]:
    """The settings that differ between trials."""
    known = [row["settings"] for row in rows if row["settings"]]
    return [name for name in (known[0] if known else {}) if any(k[name] != known[0][name] for k in known)]


def _write_table(folder: Folder, rows: list[Record]) -> None:
    names = list(dict.fromkeys(["alpha", "n_rl", "n_e", *varied(rows)]))
    flat = []
    for row in rows:
        settings = {name: row["settings"].get(name) for name in names}
        settings = {k: v if v is None or isinstance(v, bool | int | float) else str(v) for k, v in settings.items()}
        figures = {k: v for k, v in row.items() if k not in ("trial", "settings", "lines")}
        flat.append({"trial": row["trial"], **settings, **figures})
    table = pa.Table.from_pylist(flat)
    note = {layout.DIAGNOSTIC: "share of right labels by the ground truth: a diagnostic, not what trials are judged by"}
    folder.write(layout.RESULTS, as_parquet(table.replace_schema_metadata(note)))
