"""`ray-adaplr submit`: any command as a Ray job on a running cluster, with the code that is installed here.

The package travels with the job, so the cluster needs Ray, torch and the dependencies, not this package. Data does not
travel: paths must mean the same on the cluster (one machine, a network filesystem) or be URIs (s3://, gs://).
"""

import argparse
import hashlib
import logging
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from ray_adaplr.cli.options import EXIT_STOPPED, add_command
from ray_adaplr.cli.packing import pack
from ray_adaplr.config import PRIORS
from ray_adaplr.engine.auth import with_token
from ray_adaplr.errors import InputError, RunFailed, first_line
from ray_adaplr.storage.secrets import redacted

_PATHS = "--out --source --target --guest --guest-images --data --config --classes --labels --fork --root --store"
PATHS = {*_PATHS.split(), "--backbone", "--figures", "prior"}  # options that are followed by a path
# Options without a value, of commands that also take a path without an option.
FLAGS = ("--", "--at-most", "--ensemble", "--on-ray", "--once", "--subset", "--unlabelled")
FILES = (".py", ".json", ".pt", ".pth", ".ckpt", ".safetensors")  # endings of values that are paths for any option
COMMAND = "ray_adaplr_command"  # the key in a job's metadata


def add_parsers(commands: Any, check: Callable[[Sequence[str]], None]) -> None:
    """Register `submit`; `check` refuses a command with a wrong option before it is sent."""
    parser = add_command(commands, run, "submit")
    parser.set_defaults(check=check)
    where = "a cluster or its dashboard, e.g. http://head:8265; default: this machine's"
    parser.add_argument("--address", metavar="URL", help=where)
    parser.add_argument("--detach", action="store_true", help="do not wait for the job")
    parser.add_argument("--follow", metavar="ID", help="show the log of a job until it ends")
    parser.add_argument("--stop", metavar="ID", help="stop a job; the same command continues from its last checkpoint")
    parser.add_argument("--working-dir", metavar="DIR", help="send this folder too, without data, runs, .git and venv")
    parser.add_argument("job", nargs=argparse.REMAINDER, metavar="-- COMMAND …", help="the command, or: list")


def run(options: argparse.Namespace) -> int:
    """Run a command as a Ray job on a cluster; `submit list` shows the jobs.

    Example: ray-adaplr submit --address http://head:8265 -- demo --out /shared/runs/demo
    """
    job = options.job[1:] if options.job[:1] == ["--"] else options.job
    if (options.follow or options.stop) and job:
        raise InputError(f"--follow and --stop take no command, but there is '{shlex.join(job)}'; leave it out")
    if not (options.follow or options.stop or job):
        raise InputError("name the command to submit, e.g. ray-adaplr submit -- demo --out /shared/runs/demo")
    if job and job != ["list"]:
        options.check(job)
    client = connect(options.address)
    if job == ["list"]:
        show_jobs(client)
        return 0
    if options.stop:
        stop(client, options.stop)
        return 0
    job_id = options.follow or submit(client, job, options.working_dir)
    if options.detach and not options.follow:
        print(f"detached; to see it: {_again(client, '--follow', job_id)}")
        return 0
    return follow(client, job_id)


def connect(address: str | None) -> Any:
    """A client of the cluster's job server; InputError when nobody answers, or the token is missing or wrong."""
    from ray.job_submission import JobSubmissionClient

    for name in ("dashboard.modules.dashboard_sdk", "dashboard.modules.job.sdk", "_private.runtime_env.packaging"):
        logging.getLogger(f"ray.{name}").setLevel(logging.WARNING)
    if address:
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # Ray lets this variable and RAY_ADDRESS win over the argument
    where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or "this machine"
    try:
        return with_token(lambda: JobSubmissionClient(address), where)
    except InputError:  # about the token
        raise
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray job server answers at {where} ({first_line(error)}); start a cluster with `ray start "
            "--head`, or name the dashboard of one: --address http://HEAD:8265"
        ) from error


def submit(client: Any, command: Sequence[str], working_dir: str | None = None) -> str:
    """Send a command and return the job's id; a live job that already does the same is returned instead.

    InputError when a live job with another command works in the same run folder, or the command holds keys.
    """
    arguments, out = absolute_paths(command, only_out=working_dir is not None)
    line = shlex.join(arguments)
    if redacted(line) != line:
        raise InputError(f"{redacted(line)}: all on a cluster can read its jobs; give its nodes AWS_SECRET_ACCESS_KEY")
    digest = hashlib.sha256((out or "").encode()).hexdigest()[:8]
    stem = f"adaplr-{re.sub('[^A-Za-z0-9]+', '-', out)[-30:].strip('-')}-{digest}-" if out else None
    earlier = [job for job in client.list_jobs() if stem and (job.submission_id or "").startswith(stem)]
    for job in earlier:
        if not job.status.is_terminal():
            if job.metadata.get(COMMAND) == line:
                print(f"job {job.submission_id} does this already")
                return job.submission_id
            raise InputError(
                f"job {job.submission_id} works in {out} with another command; wait, use another --out, or stop it: "
                f"{_again(client, '--stop', job.submission_id)}"
            )
    number = 1 + max((int(job.submission_id.removeprefix(stem)) for job in earlier), default=0)
    with tempfile.TemporaryDirectory() as scratch:
        environment: dict[str, Any] = {"py_modules": packages(), "excludes": ["__pycache__"]}
        if working_dir:
            environment["working_dir"] = pack(working_dir, f"{scratch}/working_dir.zip")
        try:
            job_id = client.submit_job(
                entrypoint=entrypoint(arguments),
                submission_id=f"{stem}{number}" if stem else None,
                runtime_env=environment,
                metadata={COMMAND: line},
            )
        except RuntimeError as error:
            if "already exists" in str(error):  # another submit was faster; its job is found now
                return submit(client, command, working_dir)
            raise RunFailed(f"the cluster did not take the job: {error}") from error
    print(f"job {job_id}: ray-adaplr {line}")
    return job_id


def packages() -> list[str]:
    """What travels with every job: the package, and the search spaces that `tune` knows by name."""
    import ray_adaplr
    import tune_spaces

    return [ray_adaplr.__path__[0], tune_spaces.__path__[0]]


def absolute_paths(command: Sequence[str], only_out: bool = False) -> tuple[list[str], str | None]:
    """The command with relative paths made absolute, as a job starts in another folder; and its --out.

    `only_out` leaves all other paths, for a job that starts in a copy of this folder.
    """
    from ray_adaplr.storage.folder import is_uri

    arguments, out, paths = list(command), None, PATHS
    by_place = command[0] in ("prepare", "report", "watch", "export", "serve")  # these take a path without an option
    paths = paths - {"--source", "--target"} if command[0] == "demo" else paths  # the demo's are names
    paths = paths | {"--model"} if command[0] in ("evaluate", "predict") else paths  # elsewhere an architecture
    for i, argument in enumerate(arguments[1:], 1):
        option, _, value = argument.partition("=") if argument[:2] == "--" else (arguments[i - 1], "", argument)
        if option == "--set" and value.startswith("prior=") and value.removeprefix("prior=") not in PRIORS:
            option, value = "prior", value.removeprefix("prior=")
        within = re.fullmatch(r"hf:(.+?)(:\w+)?|[\w/.-]+=(.+)", value)  # hf:FOLDER:split, resnet50=FILE
        if within and option != "--out" and not os.path.exists(value):
            value = within[1] or within[3]
        before = arguments[i - 1]
        is_value = before.startswith("--") and "=" not in before and before not in FLAGS
        alone = by_place and argument[:2] != "--" and not is_value
        named = "/" in value or value.endswith(FILES) or option in paths or alone
        here = named and os.path.exists(value) and not only_out
        if value and not is_uri(value) and (here or option == "--out"):
            start, _, end = argument.rpartition(value)
            value = os.path.abspath(value)
            arguments[i] = start + value + end
        out = value if option == "--out" and value else out
    return arguments, out


def entrypoint(arguments: Sequence[str]) -> str:
    """The job's shell line: run the command with the first Python that has Ray.

    A head that was started as `/venv/bin/ray start` has another `python` on its PATH, so this Python's path is tried
    first: it is the right one on one machine and with a venv on a network filesystem.
    """
    pythons = f"{shlex.quote(sys.executable)} python python3"
    command = f'exec "$p" -m ray_adaplr {shlex.join(arguments)}'
    return (
        f'for p in {pythons}; do "$p" -c "import ray" 2>/dev/null && {command}; done; echo no Python has Ray; exit 127'
    )


def follow(client: Any, job_id: str) -> int:
    """Show a job's log until it ends; returns its command's exit code. Ctrl-C asks whether to stop it or to detach.

    RunFailed when the cluster does not answer any more.
    """
    shown, said = 0, None
    try:
        while True:
            job = _job(client, job_id)  # before the log, so that the log of a job that is over is whole
            if job.status == "PENDING" and job.message != said:  # why it has not started
                said = job.message
                print(f"pending: {said}", file=sys.stderr)
            log = client.get_job_logs(job_id) if job.status != "PENDING" else ""
            print(log[shown:], end="", flush=True)
            shown = max(shown, len(log))
            if job.status.is_terminal():
                return exit_code(job)
            time.sleep(1 + len(log) / 1e6)  # the log comes whole each time: at most 1 MB/s of it
    except KeyboardInterrupt:
        if _asked_to_stop():
            stop(client, job_id)
        else:
            print(f"\ndetached, the job continues; to see it: {_again(client, '--follow', job_id)}")
        return EXIT_STOPPED
    except BrokenPipeError:  # of who reads the log
        raise
    except (OSError, RuntimeError) as error:
        again = _again(client, "--follow", job_id)
        raise RunFailed(
            f"the cluster does not answer any more ({error}); if it lives, so does the job: {again}"
        ) from error


def exit_code(job: Any) -> int:
    """The exit code of a job that is over: the command's; 130 when it was stopped; 1 when it never ran."""
    if job.status == "STOPPED":
        return EXIT_STOPPED
    if job.status == "SUCCEEDED":
        return 0
    if job.driver_exit_code is None:
        print(f"job {job.submission_id} failed: {job.message}", file=sys.stderr)
        return 1
    return job.driver_exit_code if job.driver_exit_code >= 0 else 128 - job.driver_exit_code


def stop(client: Any, job_id: str) -> None:
    """Stop a job and wait until it is over."""
    if not _job(client, job_id).status.is_terminal():
        client.stop_job(job_id)
    while not (job := _job(client, job_id)).status.is_terminal():
        time.sleep(0.5)
    print(f"job {job_id}: {job.status.lower()}")


def show_jobs(client: Any) -> None:
    """Print the jobs that this command submitted, oldest first."""
    jobs = [job for job in client.list_jobs() if COMMAND in (job.metadata or {})]
    for job in sorted(jobs, key=lambda job: job.start_time or 0):
        began = datetime.fromtimestamp((job.start_time or 0) / 1000).strftime("%Y-%m-%d %H:%M:%S")
        print(f"{job.submission_id}  {job.status.lower():9}  {began}  {job.metadata[COMMAND]}")
    if not jobs:
        print("no jobs")


def _job(client: Any, job_id: str) -> Any:
    try:
        return client.get_job_info(job_id)
    except RuntimeError as error:  # Ray's kind for every answer but 200
        if "status code 404" not in str(error):
            raise ConnectionError(first_line(error)) from error
        raise InputError(f"no job '{job_id}' is known there; `ray-adaplr submit list` shows the jobs") from error


def _asked_to_stop() -> bool:
    if not sys.stdin.isatty():
        return False
    try:
        return input("\nstop the job (s), or leave it running (Enter)? ").strip().lower().startswith("s")
    except (EOFError, KeyboardInterrupt):
        return False


def _again(client: Any, option: str, job_id: str) -> str:
    return f"ray-adaplr submit --address {client.get_address()} {option} {job_id}"
