"""The doctor's findings: pure functions of facts, so every ill machine can be made up here."""

from dataclasses import replace
from typing import Any

import pytest

from ray_adaplr.cli import doctor
from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine.limits import Need
from ray_adaplr.engine.seating import Seating
from ray_adaplr.engine.survey import Node
from ray_adaplr.errors import InputError

VERSIONS = {"python": "3.11.9", "ray": "2.60.0", "torch": "2.15.0"}
STORE = {"fingerprint": "f", "images": 120_000, "classes": 345, "bytes": 18e9}
BOX = Node(
    "10.0.0.1",
    "a",
    cpus=8,
    memory=32e9,
    object_store=8e9,
    versions=VERSIONS,
    store=STORE,
    free_disk={"out": 1e12, "cache": 1e12},
)
OTHER = replace(BOX, name="10.0.0.2", id="b")
GPU_BOX = replace(BOX, gpus=2, seen=2, tried=["cuda:0, A10G", "cuda:1, A10G"], software="NVIDIA driver 580")


def test_equal_versions_are_listed_once() -> None:
    line = doctor.check_versions([BOX, OTHER])
    assert line.state == "ok"
    assert line.text == "python 3.11.9, ray 2.60.0, torch 2.15.0, the same on 2 nodes"


def test_another_version_on_one_node_fails_and_names_both() -> None:
    line = doctor.check_versions([BOX, replace(OTHER, versions=VERSIONS | {"torch": "2.14.0"})])
    assert line.state == "fail"
    assert "10.0.0.2 has torch 2.14.0 instead of 2.15.0" in line.text


def test_a_node_without_the_package_fails() -> None:
    line = doctor.check_versions([BOX, replace(OTHER, error="No module named 'ray_adaplr'", versions={})])
    assert line.state == "fail"
    assert "10.0.0.2: No module named 'ray_adaplr'; install" in line.text


def test_a_node_without_token_auth_is_warned_of() -> None:
    assert doctor.check_auth([BOX, OTHER]).state == "ok"
    line = doctor.check_auth([BOX, replace(OTHER, auth="disabled")])
    assert line.state == "warn"
    assert "no token auth on 10.0.0.2" in line.text
    assert "RAY_AUTH_MODE=token" in line.text


@pytest.mark.parametrize(
    ("node", "state", "text"),
    [
        (BOX, "ok", "8 CPU, 0 GPU, 32.0 GB memory, 8.0 GB object store"),
        (GPU_BOX, "ok", "8.0 GB object store; cuda:0, A10G; cuda:1, A10G; NVIDIA driver 580"),
        (replace(GPU_BOX, tried=[], unusable="torch cannot use it"), "fail", "torch cannot use it"),
        (replace(GPU_BOX, tried=[]), "warn", "taken just now"),
        (replace(BOX, seen=2), "warn", "--num-gpus 2"),
        (replace(BOX, error="timed out"), "fail", "timed out"),
    ],
)
def test_torch_must_be_able_to_use_the_gpus_that_ray_counts(node: Node, state: str, text: str) -> None:
    line = doctor.check_node(node)
    assert line.state == state
    assert text in line.text


def test_placement_says_who_sits_where() -> None:
    line = doctor.check_placement(Seating(3, 1, {"CPU": 1, "GPU": 0.5}), [GPU_BOX, OTHER], ["10.0.0.1"] * 3)
    assert (line.state, line.text) == ("ok", "3 x (1 CPU, 0.5 GPU): 3 on 10.0.0.1")


def test_placement_says_how_many_ranks_a_member_has() -> None:
    line = doctor.check_placement(Seating(2, 2, {"CPU": 1}), [BOX, OTHER], ["10.0.0.1"] * 4)
    assert (line.state, line.text) == ("ok", "2 x 2 ranks x (1 CPU): 4 on 10.0.0.1")


def test_members_that_do_not_fit_fail_with_the_way_out() -> None:
    line = doctor.check_placement(Seating(3, 1, {"CPU": 1, "GPU": 1}), [BOX], None)
    assert line.state == "fail"
    assert "--gpus-per-member 0" in line.text


def test_members_that_only_have_to_wait_are_warned_of() -> None:
    assert doctor.check_placement(Seating(3, 1, {"CPU": 1}), [BOX], None).state == "warn"


def test_storage_that_one_node_cannot_write_fails() -> None:
    assert doctor.check_storage("/nfs", [BOX, OTHER]).text == "/nfs: written and read on 2 nodes"
    line = doctor.check_storage("/nfs", [BOX, replace(OTHER, storage="Permission denied")])
    assert line.state == "fail"
    assert "/nfs on 10.0.0.2: Permission denied; use a folder that all nodes mount" in line.text


@pytest.mark.parametrize("there", [{"error": "no image store"}, STORE | {"fingerprint": "other"}, {}])
def test_images_that_one_node_does_not_read_alike_fail(there: dict[str, Any]) -> None:
    assert doctor.check_store("/nfs/x", [BOX, OTHER]).text == "120,000 images, 345 classes, 18.00 GB"
    line = doctor.check_store("/nfs/x", [BOX, replace(OTHER, store=there)])
    assert line.state == "fail"
    assert "on 10.0.0.2" in line.text


def test_the_needs_of_a_large_run_are_near_what_it_takes() -> None:
    need = Need.of(STORE, n_e=3, n_a=10, scaling=ScalingConfig())
    logits = 120_000 * 345 * 4
    assert need.coordinator == pytest.approx(10 * logits / 2 + 7 * logits)
    assert 5e9 < need.run < 7e9


def test_too_little_memory_or_disk_fails_with_the_way_out() -> None:
    need = Need.of(STORE, n_e=3, n_a=10, scaling=ScalingConfig())
    assert doctor.check_memory(need, BOX).state == "ok"
    assert "smaller n_a" in doctor.check_memory(need, replace(BOX, memory=1e9)).text
    assert doctor.check_disk(need, [BOX, OTHER], copied=True).state == "ok"
    full = doctor.check_disk(need, [BOX, replace(OTHER, free_disk={"out": 1e9})], copied=False)
    assert (full.state, "10.0.0.2 has 1.0 GB free" in full.text, "--out" in full.text) == ("fail", True, True)
    small = replace(OTHER, free_disk={"cache": 1e9})
    assert doctor.check_disk(need, [BOX, small], copied=False).state == "ok"
    assert "ADAPLR_CACHE" in doctor.check_disk(need, [BOX, small], copied=True).text


def test_a_dashboard_address_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match="submit --address http://head:8265 -- doctor"):
        doctor.doctor(doctor.DoctorOptions(), ScalingConfig(address="http://head:8265"))
