"""A local Ray is nobody else's: it listens on loopback alone, and its token is private."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ray_adaplr.engine.auth import variables

pytestmark = [pytest.mark.ray, pytest.mark.slow]

CODE = """
import json, os, re, subprocess
import ray
from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine.placement import connected

def ours(pid):
    while pid > 1 and pid != os.getpid():
        pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
    return pid == os.getpid()

mine, mode = dict(os.environ), ray._raylet.get_authentication_mode()
started = connected(ScalingConfig())
started.__enter__()
assert ray._raylet.get_authentication_mode() != mode
pid, gpus = ray.get(ray.remote(lambda: (os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES"))).remote())
assert pid != os.getpid()
listening = []
for line in subprocess.run(["ss", "-ltnp"], capture_output=True, text=True).stdout.splitlines()[1:]:
    pids = [int(pid) for pid in re.findall(r"pid=([0-9]+)", line)]
    if any(ours(pid) for pid in pids if os.path.exists(f"/proc/{pid}")):
        listening.append(line.split()[3])
node = ray._private.worker._global_node
session, processes = node.get_session_dir_path(), sorted(node.all_processes)
started.__exit__(None, None, None)
left = sorted({*os.environ.items()} ^ {*mine.items()}) + [mode] * (ray._raylet.get_authentication_mode() != mode)
there = os.path.exists(session)
print(json.dumps({"listening": listening, "gpus": gpus, "left": left, "session": there, "processes": processes}))
"""


def connected(home: Path) -> dict:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    environment = {**kept, "HOME": str(home), "PYTHONPATH": os.getcwd(), "CUDA_VISIBLE_DEVICES": "3"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss lists the ports")
def test_a_local_ray_listens_on_loopback_alone_and_its_new_token_is_private(tmp_path: Path) -> None:
    found = connected(tmp_path)
    assert len(found["listening"]) > 3
    assert [place for place in found["listening"] if "127.0.0.1" not in place] == []
    assert found["gpus"] == "3"  # a task, the doctor's too, sees no GPUs but those that the user has named
    assert found["left"] == []  # of the environment's variables, and of what Ray has read in them
    assert not found["session"]  # nor does the folder of a Ray that has ended
    assert found["processes"] == ["gcs_server", "raylet"]  # what nobody asks here would take as long again
    token = tmp_path / ".ray/auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    assert len(token.read_text()) == 64


def test_a_token_that_everybody_could_read_becomes_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray_adaplr.engine.auth import keep_token_private

    file = tmp_path / "token"
    file.write_text("secret")
    file.chmod(0o644)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(file))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    keep_token_private()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == "secret"


def test_variables_are_put_back_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAPLR_HERE", "mine")
    with variables({"ADAPLR_HERE": "0", "ADAPLR_NEW": "1"}):
        assert (os.environ["ADAPLR_HERE"], os.environ["ADAPLR_NEW"]) == ("0", "1")
    assert os.environ["ADAPLR_HERE"] == "mine"
    assert "ADAPLR_NEW" not in os.environ
