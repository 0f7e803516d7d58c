"""`ray-adaplr prepare`: images into a store."""

from argparse import Namespace
from typing import Any

from ray_adaplr.cli.options import add_classes, add_command, add_flags, given, read_classes
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.storage.secrets import redacted


def add_parsers(commands: Any) -> None:
    """Register `prepare`."""
    parser = add_command(commands, prepare)
    parser.add_argument("what", help="where the images are, hf:NAME[:split], or e.g. pacs/sketch with --root DATA")
    parser.add_argument("--out", required=True, metavar="STORE", help="the store's folder")
    add_classes(parser, "default: the data's")
    add_flags(parser, PrepareOptions, [name for name in PrepareOptions.model_fields if name != "classes"])


def prepare(options: Namespace) -> None:
    """Images into a store: a folder, a list, npz, Parquet, a Hugging Face dataset, or a benchmark's domain.

    Example: ray-adaplr prepare photos/ --size 224 --out stores/photos
    """
    from ray_adaplr.data import ingest
    from ray_adaplr.data.progress import Progress

    progress = Progress()
    wanted = given(options, PrepareOptions, classes=read_classes(options.class_list))
    store = ingest.prepare(options.what, options.out, wanted, progress)
    progress.close()
    print(redacted(f"{store.describe()}: {options.out}"))
