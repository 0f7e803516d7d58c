"""What a sweep came to: a table of its trials, the best one's settings, curves with hyper-parameters, and a page."""

import io
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ray_adaplr.config import Config
from ray_adaplr.core.scores import LABEL_FREE
from ray_adaplr.errors import RunFailed
from ray_adaplr.report.tensorboard import BoardWriter
from ray_adaplr.storage import layout
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.ownership import clear
from ray_adaplr.storage.run import Run


def conclude(
    folder: Folder, metric: str, more_is_better: bool, errors: Mapping[str, BaseException | None]
) -> layout.Row:
    """Write results.parquet, best.toml, sweep.html and every trial's hyper-parameters; returns the best trial's row.

    Raises:
        RunFailed: when a trial has no metrics or none has ended; all files are written before.
    """
    from ray_adaplr.report.sweep import sweep_page  # brings in matplotlib

    rows = [trial_row(folder, number, metric, error) for number, error in sorted(errors.items())]
    ended = [row for row in rows if row["finished"]]
    best = max(ended, key=lambda row: row["score"] if more_is_better else -row["score"]) if ended else None
    _write_table(folder, rows)
    if best:
        folder.write(layout.BEST, (folder / f"{layout.TRIALS}/{best['trial']}").read(layout.CONFIG))
    folder.write(layout.SWEEP_PAGE, sweep_page(Path(folder.base).name, rows, varied(rows), best, metric))
    for row in rows:
        place = folder / f"{layout.TRIALS}/{row['trial']}"
        _write_hyperparameters(place, row)
        if row["error"] is None:
            clear(place, layout.TRAINING_FILES)
    silent = [row for row in rows if not row["epochs"]]
    if silent:
        raise RunFailed(
            f"{len(silent)} of {len(rows)} trials have no metrics ({', '.join(row['trial'] for row in silent)}; the "
            f"first: {silent[0]['error'] or 'it never started'}); the others are in {folder.uri}, and --resume tries "
            "these again"
        )
    if best is None:
        raise RunFailed(f"no trial has come to its end; see {folder.uri}/{layout.RESULTS}, and --resume tries again")
    return best


def trial_row(folder: Folder, number: str, metric: str, error: BaseException | None) -> layout.Row:
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


def varied(rows: list[layout.Row]) -> list[str]:
    """The settings that differ between trials."""
    known = [row["settings"] for row in rows if row["settings"]]
    return [name for name in (known[0] if known else {}) if any(k[name] != known[0][name] for k in known)]


def _write_table(folder: Folder, rows: list[layout.Row]) -> None:
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


def _write_hyperparameters(trial: Folder, row: layout.Row) -> None:
    """TensorBoard's HPARAMS tab, beside the curves that the trial itself wrote."""
    if trial.is_local and row["epochs"]:
        board = BoardWriter(trial.path(layout.TENSORBOARD), row["epochs"])
        board.finish(row["settings"], row)
        board.close()


def _last_words(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
