"""`ray-adaplr serve`: a model behind HTTP."""

import sys
from argparse import Namespace
from typing import Any

from ray_adaplr.cli.options import EXIT_STOPPED, add_command, add_flags, given
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.serve_options import ServeOptions

LOOPBACK = ("127.", "localhost", "::1")


def add_parsers(commands: Any) -> None:
    """Register `serve`."""
    parser = add_command(commands, serve)
    parser.add_argument("folder", metavar="RUN_OR_MODEL_FOLDER", help=ServeOptions.model_fields["folder"].description)
    add_flags(parser, ServeOptions, [name for name in ServeOptions.model_fields if name != "folder"])


def serve(options: Namespace) -> int:
    """Answer images over HTTP with a run's target model, on Ray Serve; Ctrl-C ends it.

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
