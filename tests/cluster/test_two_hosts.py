"""Two hosts with own addresses, processes and mounts: head and worker by `ray start`, token auth on, one storage."""

import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host

from ray_adaplr.cli.main import main
from ray_adaplr.data.store import ImageStore

pytestmark = [pytest.mark.slow, pytest.mark.multinode, pytest.mark.hosts]
HEAD, WORKER = "10.77.0.1", "10.77.0.2"


def wire(first: Host, second: Host) -> None:
    """A cable between two hosts."""
    commands = [
        [
            f"--target={first.pid}",
            "ip",
            "link",
            "add",
            "eth0",
            "type",
            "veth",
            "peer",
            "eth0",
            "netns",
            str(second.pid),
        ],
        [f"--target={first.pid}", "ip", "address", "add", f"{HEAD}/24", "dev", "eth0"],
        [f"--target={second.pid}", "ip", "address", "add", f"{WORKER}/24", "dev", "eth0"],
        [f"--target={first.pid}", "ip", "link", "set", "eth0", "up"],
        [f"--target={second.pid}", "ip", "link", "set", "eth0", "up"],
    ]
    for command in commands:
        done = subprocess.run(["nsenter", "--net", *command], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no network between namespaces here: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[Host, Host, Path, Path]]:
    """Head, worker, a folder that both see, and a path that is another folder on each."""
    with Host() as head, Host() as worker, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        wire(head, worker)
        shared, private = Path(folder) / "shared", Path(folder) / "private"
        for place in (shared, private):
            place.mkdir()
        for host in (head, worker):
            host.run("mount", "-t", "tmpfs", "none", str(private), check=True)
        head.ray_start("--head", "--num-cpus=0", f"--node-ip-address={HEAD}")
        worker.ray_start(f"--address={HEAD}:6379", "--num-cpus=2", f"--node-ip-address={WORKER}")
        yield head, worker, shared, private


def test_the_doctor_sees_both_hosts_and_that_a_path_is_not_the_same_place_on_both(
    hosts: tuple[Host, Host, Path, Path],
) -> None:
    head, _, _, private = hosts
    bad = head.adaplr("doctor", "--address", "auto", "--out", str(private))
    assert bad.returncode == 1, bad.stderr
    assert "the same on 2 nodes" in bad.stdout
    assert f"3 on {WORKER}" in bad.stdout
    assert f"fail  storage    {private} on {WORKER}: what was written there is not seen here" in bad.stdout


def test_a_submitted_run_survives_the_loss_of_its_worker_with_the_same_labels(
    hosts: tuple[Host, Host, Path, Path], source_folder: Path, digit_stores: dict[str, ImageStore]
) -> None:
    head, worker, shared, _ = hosts
    adapt = ["adapt", "--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0]]
    for setting in ("epochs=40", "n_e=2", "distill_epochs=1", "distill_on=all"):
        adapt += ["--set", setting]
    submit = head.start("submit", "--", *adapt, "--out", str(shared / "run"))
    metrics, deadline = shared / "run" / "metrics.jsonl", time.monotonic() + 600
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 3:
        assert submit.poll() is None, submit.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.kill("raylet")
    assert not (shared / "run" / "labels.parquet").exists()
    worker.ray_start(f"--address={HEAD}:6379", "--num-cpus=2", f"--node-ip-address={WORKER}")
    log, _ = submit.communicate(timeout=600)
    assert submit.returncode == 0, log
    assert main([*adapt, "--out", str(shared / "local"), "--engine", "local", "--quiet"]) == 0
    assert (shared / "run/labels.parquet").read_bytes() == (shared / "local/labels.parquet").read_bytes()
