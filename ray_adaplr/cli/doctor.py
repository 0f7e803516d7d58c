"""`ray-adaplr doctor`: can this machine or cluster run that? Every line is ok, warn or fail, with the way out.

Facts are gathered first (`survey.py`), by one task on every node; the checks here are plain functions of the facts.
"""

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ray_adaplr.cli.options import add_command, add_flags, given
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.engine.limits import GB, Need
from ray_adaplr.engine.survey import Node, gather, try_seats
from ray_adaplr.errors import Checked, InputError, option

if TYPE_CHECKING:
    from ray_adaplr.engine.seating import Seating


@dataclass(frozen=True)
class Line:
    """One finding."""

    state: Literal["ok", "warn", "fail"]
    what: str
    text: str


class DoctorOptions(Checked):
    """What a run would take, and where it would work."""

    n_e: int = option(3, "ensemble members", ge=1, le=1000)
    out: str | None = option(None, "storage of runs, to be written to from every node")
    store: str | None = option(None, "target images, to be read on every node")


def add_parsers(commands: Any) -> None:
    """Register `doctor`."""
    parser = add_command(commands, run, "doctor")
    add_flags(parser, DoctorOptions)
    add_flags(parser, ScalingConfig, ["address", "gpus_per_member", "ranks_per_member", "cpus_per_member"])
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Check whether this machine or cluster can run a job: each line is ok, warn or fail; exit code 1 on a failure.

    Example: ray-adaplr doctor --store stores/sketch --out runs
    """
    lines = doctor(given(options, DoctorOptions), given(options, ScalingConfig))
    failed = any(line.state == "fail" for line in lines)
    if options.json:
        print(json.dumps({"ok": not failed, "lines": [asdict(line) for line in lines]}, indent=1))
    else:
        print("\n".join(f"{line.state:4}  {line.what:9}  {line.text}" for line in lines))
    return int(failed)


def doctor(wanted: DoctorOptions, scaling: ScalingConfig) -> list[Line]:
    """Findings about a cluster, or about this machine through a local Ray."""
    from ray_adaplr.engine import placement
    from ray_adaplr.engine.seating import seating
    from ray_adaplr.storage.folder import is_uri

    n_e, out, store, address = wanted.n_e, wanted.out, wanted.store, scaling.address
    if address and address.startswith("http"):
        raise InputError(f"{address} is a dashboard; ask over there: ray-adaplr submit --address {address} -- doctor")
    with placement.connected(scaling):
        nodes = gather(out, store)
        there = [{"CPU": node.cpus, "GPU": node.gpus} for node in nodes]
        seated = seating(n_e, there, scaling, Config().batch_size)
        seats = try_seats(seated.bundles, nodes)
    lines = [check_versions(nodes), check_auth(nodes), *map(check_node, nodes)]
    lines.append(check_placement(seated, nodes, seats))
    if out:
        lines.append(check_storage(out, nodes))
    if store:
        lines.append(check_store(store, nodes))
        if lines[-1].state == "ok":
            need = Need.of(nodes[0].store, n_e, Config().n_a, scaling)
            lines += [check_memory(need, nodes[0]), check_disk(need, nodes, copied=is_uri(store))]
    return lines


def check_versions(nodes: list[Node]) -> Line:
    """The same versions everywhere: others give other bits, or do not talk to each other."""
    wanted = nodes[0].versions
    for node in nodes:
        if node.error:
            return Line("fail", "versions", f"{node.name}: {node.error}; install the same packages on every node")
        apart = [
            f"{name} {node.versions.get(name)} instead of {version}"
            for name, version in wanted.items()
            if node.versions.get(name) != version
        ]
        if apart:
            return Line("fail", "versions", f"{node.name} has {', '.join(apart)}; use one image or lock file")
    same = f", the same on {len(nodes)} nodes" if len(nodes) > 1 else ""
    return Line("ok", "versions", ", ".join(f"{name} {version}" for name, version in wanted.items()) + same)


def check_auth(nodes: list[Node]) -> Line:
    """Token auth on every node."""
    if without := [node.name for node in nodes if node.auth != "token"]:
        way_out = "set RAY_AUTH_MODE=token and the same ~/.ray/auth_token on every node before `ray start`"
        return Line("warn", "auth", f"no token auth on {', '.join(without)}: who reaches a port runs code; {way_out}")
    return Line("ok", "auth", "token auth on every node")


def check_node(node: Node) -> Line:
    """What a node has, and whether torch can use its GPUs."""
    text = (
        f"{node.name}: {node.cpus:g} CPU, {node.gpus:g} GPU, {node.memory / GB:.1f} GB memory, "
        f"{node.object_store / GB:.1f} GB object store"
    )
    if problem := node.error or node.unusable:
        return Line("fail", "node", f"{text}; {problem}")
    if node.gpus and not node.tried:
        return Line("warn", "node", f"{text}; its GPUs are taken just now and were not tried")
    if node.seen > node.gpus:
        way_out = f"start Ray there with --num-gpus {node.seen} to use all"
        return Line("warn", "node", f"{text}; torch sees {node.seen} GPUs, {way_out}")
    return Line("ok", "node", "; ".join([text, *node.tried, *([node.software] if node.tried else [])]))


def check_placement(seated: "Seating", nodes: list[Node], seats: list[str] | None) -> Line:
    """Whether the members' ranks fit, and where they sit; `seats` is None when the resources are taken just now."""
    from ray_adaplr.engine.seating import check_fit, in_words

    try:
        check_fit(seated.bundles, [{"CPU": node.cpus, "GPU": node.gpus} for node in nodes], seated.ranks)
    except InputError as error:
        return Line("fail", "placement", str(error))
    several = f"{seated.ranks} ranks x " if seated.ranks > 1 else ""
    each = f"{seated.members} x {several}({in_words(seated.share)})"
    if seats is None:
        return Line("warn", "placement", f"{each} fit, but other work holds the resources now; a run would wait for it")
    return Line("ok", "placement", f"{each}: {', '.join(f'{n} on {name}' for name, n in Counter(seats).items())}")


def check_storage(out: str, nodes: list[Node]) -> Line:
    """Every node writes to the storage, and the driver sees what they wrote."""
    for node in nodes:
        if node.error or node.storage:
            way_out = "use a folder that all nodes mount, or a bucket (s3://, gs://) that all may write to"
            return Line("fail", "storage", f"{out} on {node.name}: {node.error or node.storage}; {way_out}")
    return Line("ok", "storage", f"{out}: written and read on {len(nodes)} {'nodes' if len(nodes) > 1 else 'node'}")


def check_store(store: str, nodes: list[Node]) -> Line:
    """Every node reads the same images."""
    first = nodes[0].store
    for node in nodes:
        if "fingerprint" not in node.store or node.store["fingerprint"] != first.get("fingerprint"):
            why = node.error or node.store.get("error", "other images than elsewhere")
            return Line("fail", "images", f"{store} on {node.name}: {why}; put the store where all nodes can read it")
    return Line("ok", "images", f"{first['images']:,} images, {first['classes']} classes, {first['bytes'] / GB:.2f} GB")


def check_memory(need: Need, node: Node) -> Line:
    """The coordinator's memory on its node."""
    text = (
        f"the coordinator takes about {need.coordinator / GB:.1f} of {node.memory / GB:.1f} GB on {node.name}, a "
        f"member up to {need.member / GB:.1f} GB and its activations"
    )
    if need.coordinator > node.memory:
        return Line("fail", "memory", f"{text}; take a larger head node, or a smaller n_a")
    return Line("ok", "memory", text)


def check_disk(need: Need, nodes: list[Node], copied: bool) -> Line:
    """Room for the run's folder, and on every node for a copy of images that come from a bucket."""
    for place, named, wanted in (("out", "--out", need.run), ("cache", "ADAPLR_CACHE", need.images * copied)):
        for node in nodes:
            if (free := node.free_disk.get(place)) is not None and free < wanted:
                text = f"{node.name} has {free / GB:.1f} GB free and needs {wanted / GB:.1f} GB"
                return Line("fail", "disk", f"{text}; free some, or choose another {named}")
    images = f", a copy of the images {need.images / GB:.2f} GB on every node" if copied else ""
    return Line("ok", "disk", f"the run's folder takes up to {need.run / GB:.2f} GB{images}")
