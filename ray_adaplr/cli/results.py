"""Commands that use what a run came to: evaluate, predict, report, watch, export, serve."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_adaplr.cli.options import EXIT_STOPPED, Parser, add_command, add_flags, given
from ray_adaplr.errors import InputError, counted
from ray_adaplr.integrations.serve_options import ServeOptions
from ray_adaplr.storage.secrets import redacted

_SIGN = b"ray-adaplr predict"  # in the metadata of a table of predictions
_CSV_HEAD = b'"id","label","class","confidence"'  # how one that is text begins
TO = ("onnx", "torch-export", "hf", "cleanlab")  # known without torch, so that --help answers at once
LOOPBACK = ("127.", "localhost", "::1")

if TYPE_CHECKING:
    from ray_adaplr.core.models import Classifier


def add_parsers(commands: Any) -> None:
    """Register the commands that look at results."""
    parser = add_command(commands, evaluate)
    _add_model(parser)
    labelled = "a store with ground truth, or a folder with one subfolder per class; repeat to join"
    parser.add_argument("--data", action="append", required=True, metavar="PATH", help=labelled)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")

    parser = add_command(commands, predict)
    _add_model(parser)
    images = "a store, or whatever `prepare` takes; repeat to join several"
    parser.add_argument("--data", action="append", required=True, metavar="PATH", help=images)
    parser.add_argument("--out", required=True, metavar="FILE", help="where the table goes, .parquet or .csv")
    parser.add_argument("--probabilities", action="store_true", help="add a column p_CLASS for each class")

    parser = add_command(commands, report)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--out", metavar="FILE.html", help="default: report.html in the run's folder")
    parser.add_argument("--figures", metavar="DIR", help="also write each figure as PNG, SVG and PDF")

    parser = add_command(commands, watch)
    parser.add_argument("run", metavar="RUN")
    parser.add_argument("--once", action="store_true", help="print the view once and end")

    parser = add_command(commands, export)
    parser.add_argument("folder", metavar="RUN", help="a run, whose target model is taken, or a model's folder")
    parser.add_argument("--to", required=True, choices=TO, help="which tool it is for")
    parser.add_argument("--out", required=True, metavar="PATH", help="the file to write; for hf a new folder")
    _add_factory(parser)

    parser = add_command(commands, serve)
    parser.add_argument("folder", metavar="RUN_OR_MODEL_FOLDER", help=ServeOptions.model_fields["folder"].description)
    add_flags(parser, ServeOptions, [name for name in ServeOptions.model_fields if name != "folder"])


def _add_model(parser: Parser) -> None:
    text = "a model, or a run for its target model; repeat for an ensemble"
    parser.add_argument("--model", action="append", required=True, metavar="FOLDER", help=text)
    _add_factory(parser)


def _add_factory(parser: Parser) -> None:
    text = "package.module:function that makes the network, for a folder of your own class"
    parser.add_argument("--factory", metavar="NAME", help=text)


def _load_models(options: Namespace) -> "list[Classifier]":
    from ray_adaplr.integrations.sources import open_model

    return [open_model(model, options.factory) for model in options.model]


def evaluate(options: Namespace) -> None:
    """Measure the accuracy of a model on a store with ground truth, or on a labelled folder.

    Example: ray-adaplr evaluate --model runs/sketch/target_model --data stores/sketch
    """
    import json

    from ray_adaplr.stages import evaluate as stage

    models = _load_models(options)
    with stage.images_for(models, options.data) as images:
        scores = stage.evaluate(models, images)
    if options.json:
        print(json.dumps(scores, indent=1))
        return
    print(f"accuracy {scores['accuracy']:.4f} on {counted(scores['images'], 'image')}")
    for kind in ("per_domain", "per_class"):
        print(f"  {kind.removeprefix('per_')}")
        for name, value in scores[kind].items():
            print(f"    {name:20} {'-' if value is None else f'{value:.4f}'}")


def predict(options: Namespace) -> None:
    """Write labels and confidences for a store or images to a Parquet or CSV file.

    Example: ray-adaplr predict --model runs/sketch --data photos/ --out labels.csv
    """
    from ray_adaplr.stages import evaluate as stage
    from ray_adaplr.storage.folder import parent_of
    from ray_adaplr.storage.ownership import own_file
    from ray_adaplr.storage.run import as_csv, as_parquet

    suffix = Path(parent_of(options.out)[1]).suffix.lower()
    if suffix not in (".parquet", ".pq", ".csv"):
        raise InputError(f"--out {options.out}: predictions are Parquet or CSV; let the name end in .parquet or .csv")
    folder, name = own_file(options.out, *((_CSV_HEAD, b"") if suffix == ".csv" else (b"PAR1", _SIGN)))
    models = _load_models(options)
    data = options.data if len(options.data) > 1 else options.data[0]  # ["cat.png"] would be named by its path
    with stage.images_for(models, data, unlabelled=True) as images:
        table = stage.predict(models, images, options.probabilities)
    signed = table.replace_schema_metadata({"made_by": _SIGN})
    folder.write(name, as_csv(table) if suffix == ".csv" else as_parquet(signed))
    print(redacted(f"{counted(len(table), 'prediction')}: {options.out}"))


def report(options: Namespace) -> None:
    """Write the HTML page of a run, finished or not; several runs are compared on one page.

    Example: ray-adaplr report runs/sketch
    """
    from ray_adaplr.report.figures import save_figures
    from ray_adaplr.report.page import are_repeats, comparison_page, report_page
    from ray_adaplr.storage.folder import Folder
    from ray_adaplr.storage.layout import REPORT
    from ray_adaplr.storage.ownership import own_file
    from ray_adaplr.storage.run_reader import read_run

    runs = [read_run(run, labels=False) for run in options.runs]
    for run in runs:
        run.check()
    if options.figures and not are_repeats(runs):
        raise InputError("--figures of several runs are means over seeds, and these differ in more: draw each alone")
    single = len(options.runs) == 1
    out = options.out or ((Folder(options.runs[0]) / REPORT).uri if single else "comparison.html")
    folder, name = own_file(out, b"<!doctype html>", b"ray-adaplr</title>")  # every page names its maker
    folder.write(name, report_page(options.runs[0]) if single else comparison_page(options.runs))
    print(redacted(f"report: {out}"))
    if options.figures:
        files = save_figures([read_run(run) for run in options.runs], options.figures)
        print(redacted(f"{counted(files, 'file')}: {options.figures}"))


def watch(options: Namespace) -> None:
    """Watch a run live, from its folder.

    Example: ray-adaplr watch runs/sketch
    """
    from ray_adaplr.report.live import follow_run

    follow_run(options.run, once=options.once)


def export(options: Namespace) -> None:
    """Write a run's target model, or its labels (cleanlab), for other tools; a model is first tried there on 32 images.

    Example: ray-adaplr export runs/sketch --to onnx --out sketch.onnx
    """
    from ray_adaplr.integrations import export as door
    from ray_adaplr.storage.models import load_model

    done = door.export(options.folder, options.to, options.out, lambda place: load_model(place, options.factory))
    print(redacted(done))


def serve(options: Namespace) -> int:
    """Serve a run's target model over HTTP, on Ray Serve; Ctrl-C stops it.

    Example: ray-adaplr serve runs/sketch --port 8000
    """
    wanted = given(options, ServeOptions)
    try:
        from ray_adaplr.integrations.serving import run_server
    except ImportError as error:
        raise InputError("serve needs Ray Serve; pip install 'ray-adaplr[serve]'") from error

    if not wanted.host.startswith(LOOPBACK):
        print("everybody who reaches this machine can send images: there is no password", file=sys.stderr)
    try:
        run_server(wanted, lambda text: print(text, flush=True))
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    return EXIT_STOPPED
