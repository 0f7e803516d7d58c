"""The process group of a network's ranks: the first one opens a place to meet, and all of them join there.

It listens on the address that Ray gave the node, so the groups of a local Ray are on loopback like all else of it.
"""

import contextlib
import datetime
import os
import socket
import struct
from collections.abc import Iterator
from typing import Any

import ray
import torch.distributed as dist

from ray_adaplr.core import devices
from ray_adaplr.core.ranks import PeerLost, Ranks

_LIMIT = datetime.timedelta(days=7)  # whoever started the ranks watches them, and ends a wait earlier
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network interface
_INTERFACE = "GLOO_SOCKET_IFNAME"
Meeting = tuple[str, int]  # host and port


class Gatherings:
    """The groups that a process is part of, one after another; they meet at the address of its node."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._store: Any = None  # lives as long as the group that met there

    @classmethod
    def here(cls) -> "Gatherings":
        """Those of a process of Ray."""
        return cls(ray.util.get_node_ip_address())

    def open(self, world: int) -> Meeting:
        """Open a place to meet for so many ranks."""
        listening = socket.create_server((self._host, 0))
        meeting = self._host, listening.getsockname()[1]
        self._store = dist.TCPStore(
            *meeting, world, True, _LIMIT, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        return meeting

    def join(self, meeting: Meeting, ranks: Ranks, device: str) -> None:
        """Join the group that meets there, as the rank of a network on this kind of device; an earlier group ends.

        PeerLost when the others do not come.
        """
        if dist.is_initialized():
            dist.destroy_process_group()
        backend = devices.COLLECTIVES.get(device, "gloo")
        backend = backend if dist.is_backend_available(backend) else "gloo"
        try:
            store = self._store if ranks.rank == 0 else dist.TCPStore(*meeting, ranks.world, False, _LIMIT)
            with _interface_of(self._host):
                dist.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.world, timeout=_LIMIT)
        except (RuntimeError, OSError) as error:
            raise PeerLost(f"the ranks did not meet at {meeting[0]}:{meeting[1]}: {error}") from error


@contextlib.contextmanager
def _interface_of(host: str) -> Iterator[None]:
    """Meanwhile gloo uses the interface of this address; by itself it takes that of the machine's name."""
    name = _interface(host)
    if name is None or _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = name
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def _interface(host: str) -> str | None:
    """The name of the interface that has this IPv4 address; None where there is none, or no way to ask."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # it has no address
                    answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                    if socket.inet_ntoa(answer[20:24]) == host:
                        return name
    return None
