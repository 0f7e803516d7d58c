"""A real head with token auth: what is submitted to it, and what the doctor finds on it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hosts import Host

from ray_adaplr.cli.main import main
from ray_adaplr.core.models import DigitCNN
from ray_adaplr.data.store import ImageStore

pytestmark = [pytest.mark.slow, pytest.mark.multinode]
SMALL = ["--set", "n_e=1", "--set", "epochs=2", "--set", "distill_epochs=1", "--set", "distill_on=all"]


@pytest.fixture(scope="module")
def head() -> Iterator[Host]:
    with Host() as host:
        host.ray_start("--head", "--num-cpus=2", "--node-ip-address=127.0.0.1")
        yield host


@pytest.mark.usefixtures("unrendered")
def test_a_submitted_run_gives_the_labels_of_a_local_one_and_a_refused_one_its_exit_code(
    head: Host, source_folder: Path, digit_stores: dict[str, ImageStore], capsys: pytest.CaptureFixture[str]
) -> None:
    adapt = ["adapt", "--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0], *SMALL]
    done = head.adaplr("submit", "--", *adapt, "--out", "there")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "high-confidence" in done.stdout
    assert main([*adapt, "--out", str(head.folder / "here"), "--engine", "local", "--quiet"]) == 0
    assert (head.folder / "there/labels.parquet").read_bytes() == (head.folder / "here/labels.parquet").read_bytes()

    changed = head.adaplr("submit", "--", *adapt, "--out", "there", "--seed", "3")
    assert changed.returncode == 2  # the command's own exit code for bad input
    assert "seed: 0 -> 3" in changed.stdout
    lines = head.adaplr("submit", "list").stdout.splitlines()
    assert [line.split()[1] for line in lines] == ["succeeded", "failed"]


def test_a_network_that_a_function_of_the_users_own_makes_is_adapted_on_the_cluster(
    head: Host, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    body = "from ray_adaplr.core.models import DigitCNN\n\n\ndef network():\n    return DigitCNN(10, width=4)\n"
    (tmp_path / "mine.py").write_text(body)
    (tmp_path / "classes.txt").write_text("\n".join("0123456789"))
    torch.save(DigitCNN(10, width=4).state_dict(), tmp_path / "mine.pt")
    adapt = ["adapt", "--source", "mine.pt", "--model", "mine:network", "--classes", "classes.txt", *SMALL]
    adapt += ["--normalize", "none", "--target", digit_stores["optdigits"].paths[0]]
    done = head.adaplr("submit", "--working-dir", str(tmp_path), "--", *adapt, "--out", str(head.folder / "factory"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((head.folder / "factory/target_model/model.json").read_text())["name"] == "mine:network"


@pytest.mark.hosts
def test_the_submitted_demo_gives_the_labels_of_the_local_demo(head: Host) -> None:
    there = head.adaplr("submit", "--", "demo", "--out", "demo-there", timeout=900)
    assert there.returncode == 0, there.stdout + there.stderr
    assert "refine     " in there.stdout
    here = head.adaplr("demo", "--out", "demo-here", timeout=900)
    assert here.returncode == 0, here.stdout + here.stderr
    for name in ("labels.parquet", "target_model/model.safetensors"):
        assert (head.folder / "demo-there" / name).read_bytes() == (head.folder / "demo-here" / name).read_bytes()


def test_ctrl_c_without_a_terminal_detaches_and_stop_ends_the_job(head: Host) -> None:
    submit = head.start("submit", "--", "demo", "--out", "long")
    assert submit.stdout is not None
    job = submit.stdout.readline().split()[1].rstrip(":")
    while "Running entrypoint" not in submit.stdout.readline():
        assert submit.poll() is None
    head.interrupt(submit)
    rest, _ = submit.communicate(timeout=600)
    assert submit.returncode == 130
    assert f"the job continues; to see it: ray-adaplr submit --address http://127.0.0.1:8265 --follow {job}" in rest
    assert "running" in head.adaplr("submit", "list").stdout
    assert head.adaplr("submit", "--stop", job).stdout == f"job {job}: stopped\n"
    assert head.adaplr("submit", "--follow", job).returncode == 130


def test_a_missing_or_wrong_token_is_told_in_a_sentence(head: Host) -> None:
    wrong = head.adaplr("submit", "list", RAY_AUTH_TOKEN="f" * 64)
    assert wrong.returncode == 2
    assert "refused the token in RAY_AUTH_TOKEN" in wrong.stderr
    missing = head.adaplr("submit", "--address", "http://127.0.0.1:8265", "list", HOME="/nowhere")
    assert missing.returncode == 2
    assert missing.stderr.startswith("ray-adaplr: the cluster at http://127.0.0.1:8265 wants a token and there is none")


def test_the_doctor_finds_the_head_well(head: Host) -> None:
    done = head.adaplr("doctor", "--address", "auto", "--out", "storage", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {line["what"]: line for line in json.loads(done.stdout)["lines"]}
    assert {line["state"] for line in found.values()} == {"ok"}
    assert found["placement"]["text"] == "3 x (0.5 CPU): 3 on 127.0.0.1"
    assert found["auth"]["text"] == "token auth on every node"
    assert not (head.folder / "storage").exists(), "it was not there before"
