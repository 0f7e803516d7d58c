"""The process group of a network's ranks: the first one opens a place to meet, and all of them join there.

It listens on the address that Ray gave the node, so the groups of a local Ray are on loopback like all else of it.
"""

import contextlib
import datetime
import fcntl
import os
import socket
import struct
from typing import Any

import ray
import torch.distributed as dist

from ray_adaplr.core import devices
from ray_adaplr.core.ranks import PeerLost, Ranks
from ray_adaplr.engine.auth import variables

_LIMIT = datetime.timedelta(days=7)  # whoever started the ranks watches them, and ends a wait earlier
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network interface
_INTERFACE = "GLOO_SOCKET_IFNAME"
Meeting = tuple[str, int]  # host and port


class Group:
    """The group that a process of Ray is part of; a new one ends the earlier."""

    def __init__(self) -> None:
        self._store: Any = None  # lives as long as the group that met there

    def open(self, world: int) -> Meeting:
        """Open a place to meet for so many ranks, at the address of this node."""
        listening = socket.create_server((ray.util.get_node_ip_address(), 0))
        meeting: Meeting = listening.getsockname()[:2]
        self._store = dist.TCPStore(
            *meeting, world, True, _LIMIT, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return meeting

    def join(self, meeting: Meeting, ranks: Ranks, device: str) -> None:
        """Join the group that meets there, as the rank of a network on this kind of device.

        PeerLost when the others do not come.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        backend = devices.COLLECTIVES.get(device, "gloo")
        backend = backend if dist.is_backend_available(backend) else "gloo"
        try:
            store = self._store if ranks.rank == 0 else dist.TCPStore(*meeting, ranks.world, False, _LIMIT)
            # By itself gloo takes the interface that the machine's name leads to.
            interface = os.environ.get(_INTERFACE) or _interface(ray.util.get_node_ip_address())
            with variables({_INTERFACE: interface}):
                dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.world, timeout=_LIMIT)
        except (RuntimeError, OSError) as error:
            raise PeerLost(f"the ranks did not meet at {meeting[0]}:{meeting[1]}: {error}") from error


def _interface(host: str) -> str | None:
    """The name of the interface that has this IPv4 address; None where there is none, or no way to ask."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == host:
                    return name
    return None
