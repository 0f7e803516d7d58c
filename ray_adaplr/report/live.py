"""The terminal view of a run, from its folder alone: redrawn while it runs, printed once when not on a terminal."""

import sys
import time
from datetime import datetime, timezone
from pathlib import Path

from ray_adaplr.storage.run_reader import RunFolder, is_number, read_run

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40
PAUSE = 2.0  # seconds between two looks
SHOWN = {
    "gamma": "gamma",
    "reassigned": "changed this epoch",
    "agreement": "agreement",
    "min_class_share": "smallest class",
    "noise": "noise (diagnostic)",
}


def follow_run(run: str | Path, once: bool = False) -> None:
    """Shows a run until it ends or Ctrl-C is pressed."""
    live = sys.stdout.isatty() and not once
    try:
        while True:
            folder = read_run(run, labels=False)
            folder.check()
            # Home, then each line cleared to its end: redrawing without the flicker of a wiped screen.
            text = describe_run(folder)
            print("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[J" if live else text, flush=True)
            if not live or folder.finished:
                return
            time.sleep(PAUSE)
    except KeyboardInterrupt:
        print()


def describe_run(run: RunFolder) -> str:
    """The present state of a run in a few lines."""
    lines = [f"{run.name} · {_state(run)}", ""]
    for key, name in SHOWN.items():
        values = [record[key] for record in run.refine if is_number(record.get(key))]
        if values:
            lines.append(f"  {name:<20}{values[-1]:6.3f}  {sparkline(values)}")
    losses = [record["loss"] for record in run.distill if is_number(record.get("loss"))]
    if losses:
        lines.append(f"  {'target model loss':<20}{losses[-1]:6.3f}  {sparkline(losses)}")
    results = {key: run.summary.get(key) for key in ("inferred", "refined", "target")}
    if any(is_number(value) for value in results.values()):
        known = [f"{key} {value:.1%}" for key, value in results.items() if is_number(value)]
        lines.append(f"  accuracy (diagnostic): {', '.join(known)}")
    lines += [f"  ! {warning}" for warning in run.warnings]
    lines += [f"  ! {name} is cut off, altered or not readable" for name in run.unread]
    return "\n".join(lines)


def sparkline(values: list[float]) -> str:
    """Values from 0 to the largest as blocks, the last of each stretch when there are more values than room."""
    stretch, top = -(-len(values) // WIDTH), max(values) or 1.0
    return "".join(BLOCKS[max(0, min(7, int(8 * value / top)))] for value in values[::-1][::stretch][::-1])


def _state(run: RunFolder) -> str:
    planned, done = run.settings.get("epochs"), len(run.refine)
    if run.finished:
        return f"finished after {done} epochs"
    if run.distill:
        state = f"training the target model, epoch {len(run.distill)}"
    elif run.refined:
        state = f"refined after {done} epochs, without a target model yet"
    elif done:
        state = f"refining, epoch {done}" + (f" of {planned}" if planned else "")
        seconds = run.last("seconds")
        if is_number(planned) and seconds:
            state += f", about {max(0, planned - done) * seconds / 60:.0f} min left"
    else:
        state = "no epoch has ended yet"
    speed = run.last("images_per_s")
    if speed:
        state += f", {speed:,.0f} images/s"
    if run.last_write:
        # A quiet folder is the one sign of a dead run that can be seen from outside.
        quiet = (datetime.now(timezone.utc) - run.last_write).total_seconds()
        if quiet > max(60, 5 * (run.last("seconds") or 0)):
            state += f"; nothing new for {quiet / 60:.0f} min"
    return state
