"""A cluster whose nodes come when they are asked for: Ray's autoscaler with nodes that are processes of one host."""

import json
import sys
from pathlib import Path

import pytest
from hosts import Host

pytestmark = [pytest.mark.slow, pytest.mark.multinode, pytest.mark.hosts]
CONFIG = {
    "cluster_name": "grows",
    "max_workers": 3,
    "idle_timeout_minutes": 1,
    "provider": {
        "type": "fake_multinode",
        "use_node_id_as_ip": True,
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
    },
    "auth": {},
    "docker": {},
    "file_mounts": {},
    "cluster_synced_files": [],
    "file_mounts_sync_continuously": False,
    "rsync_exclude": [],
    "rsync_filter": [],
    "upscaling_speed": 10,
    "head_node_type": "ray.head.default",  # the name that Ray's stand-in for a cloud gives its head
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 3},
    },
}
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


def test_members_are_asked_for_at_once_so_an_autoscaler_brings_their_nodes() -> None:
    with Host() as host:
        file = host.folder / "cluster.json"
        file.write_text(json.dumps(CONFIG | {f"{name}_commands": [] for name in COMMANDS}))
        host.env |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1"}
        host.ray_start("--head", "--num-cpus=0", f"--autoscaling-config={file}", "--node-ip-address=127.0.0.1")
        done = host.run(sys.executable, str(Path(__file__).with_name("autoscaled.py")))
        assert done.stdout.split() == ["1", "4"], done.stdout + done.stderr
