"""`ray-adaplr export`: a run's model, or its labels, for other tools."""

from argparse import Namespace
from typing import Any

from ray_adaplr.cli.options import add_command
from ray_adaplr.storage.secrets import redacted

TO = ("onnx", "torch-export", "hf", "cleanlab")  # known without torch, so that --help answers at once


def add_parsers(commands: Any) -> None:
    """Register `export`."""
    parser = add_command(commands, export)
    parser.add_argument("folder", metavar="RUN", help="a run, whose target model is taken, or a model's folder")
    parser.add_argument("--to", required=True, choices=TO, help="which tool it is for")
    parser.add_argument("--out", required=True, metavar="PATH", help="the file to write; for hf a new folder")
    text = "package.module:function that makes the network, for a folder of your own class"
    parser.add_argument("--factory", metavar="NAME", help=text)


def export(options: Namespace) -> None:
    """A run's target model, or its labels (cleanlab), for other tools; they run a model on 32 images before you get it.

    Example: ray-adaplr export runs/sketch --to onnx --out sketch.onnx
    """
    from ray_adaplr.integrations import export as door
    from ray_adaplr.storage.models import load_model

    done = door.export(options.folder, options.to, options.out, lambda place: load_model(place, options.factory))
    print(redacted(done))
