"""Every example runs as its page says, and does what it shows."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ray_adaplr.config import Config

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.slow


def run(*command: str, **variables: str) -> str:
    """What a program printed, run from the project's folder as the page says; it must end well."""
    env = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    run(str(EXAMPLES / "folder.sh"), str(folder))
    return folder


def test_an_own_network_is_adapted_and_its_result_read_without_the_package(tmp_path: Path) -> None:
    said = run(sys.executable, "examples/own_network.py", str(tmp_path / "run"))
    before, after = (float(line.split()[1]) for line in said.splitlines() if line.endswith("right"))
    assert after > before + 0.05
    read = run(sys.executable, "examples/read_result.py", str(tmp_path / "run"))
    assert "500 labels" in read
    assert float(read.split("refined labels on ")[1].split()[0]) > 0.8
    assert "ray_adaplr" not in (EXAMPLES / "read_result.py").read_text().split('"""', 2)[2]


def test_a_folder_of_images_goes_from_files_to_predictions(folder_run: Path) -> None:
    import pyarrow.parquet as pq

    assert len(pq.read_table(folder_run / "predictions.parquet")) == 300
    assert (folder_run / "run/report.html").exists()


@pytest.mark.ray
def test_a_sweep_over_an_own_space_finds_settings(folder_run: Path, ray_cluster: "Cluster") -> None:
    on_the_tests_ray = {"RAY_ADDRESS": ray_cluster.address, "RAY_AUTH_MODE": "disabled"}  # it has no token
    said = run(str(EXAMPLES / "sweep.sh"), str(folder_run), **on_the_tests_ray)
    best = Config.load(file=folder_run / "sweep/best.toml")
    assert best.alpha in (0.8, 0.9)
    assert best.n_e in (1, 2)
    assert f"alpha = {best.alpha}" in said


def test_every_example_is_listed_and_its_shell_is_clean() -> None:
    page = (EXAMPLES / "README.md").read_text()
    programs = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")]
    assert [name for name in programs if f"`{name}`" not in page] == []
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    scripts = [str(path) for path in EXAMPLES.glob("*.sh")]
    subprocess.run([shellcheck or "true", *scripts], check=True)
