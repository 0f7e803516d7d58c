"""Where disturbed runs live: a Ray of three nodes that lasts, and a bucket whose server can be cut off."""

import contextlib
import logging
import os
import socket
import threading
import time
from typing import Any

from benchmarks.chaos.processes import below, named

BUCKET = "chaos"
# Ray misses a dead node after 2.5 s instead of 15; a slow one still has its 10 s to answer.
OFTEN = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 500}


class Nodes:
    """A head without CPUs and two nodes with one each, so that two members sit on two nodes."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        # A cluster for tests takes no token, and then a driver that finds one in the home folder must not ask for it.
        self.environment = {"RAY_AUTH_MODE": "disabled"}
        os.environ.update(self.environment)
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": OFTEN}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._nodes: list[Any] = [self._cluster.add_node(num_cpus=1) for _ in range(2)]
        self.address: str = self._cluster.address

    def members(self) -> list[int]:
        """Processes of members that are at work."""
        raylets = [info[0].process.pid for node in self._nodes for info in [node.all_processes["raylet"]]]
        return sorted(pid for raylet in raylets for pid in named(below(raylet), "ray::Member."))

    def replace(self, index: int) -> None:
        """Kill a node with everything on it, then bring a new one."""
        self._cluster.remove_node(self._nodes.pop(index), allow_graceful=False)
        self._nodes.append(self._cluster.add_node(num_cpus=1, wait=False))

    def close(self) -> None:
        """End all nodes."""
        self._cluster.shutdown()


class Bucket:
    """An S3 server on loopback behind a line that can be cut."""

    def __init__(self) -> None:
        import boto3
        from moto.server import ThreadedMotoServer

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would print a line per request
        keys = {"AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": "chaos", "AWS_EC2_METADATA_DISABLED": "true"}
        self.environment = keys
        os.environ.update(keys)
        self._moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._moto.start()
        self._server: int = self._moto.get_host_and_port()[1]
        boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self._server}", region_name="us-east-1").create_bucket(
            Bucket=BUCKET
        )
        self._cut = threading.Event()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def uri(self, name: str) -> str:
        """A folder as runs see it, through the line."""
        return self._uri(name, self._listener.getsockname()[1])

    def direct(self, name: str) -> str:
        """The same folder without the line."""
        return self._uri(name, self._server)

    def outage(self, seconds: float) -> None:
        """Cut every connection, and let none through until the time is over."""
        self._cut.set()
        for end in list(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)
        self._cut.clear()

    def close(self) -> None:
        """End the server."""
        self._listener.close()
        self._moto.stop()

    def _uri(self, name: str, port: int) -> str:
        return f"s3://{BUCKET}/{name}?scheme=http&endpoint_override=127.0.0.1:{port}&region=us-east-1"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._cut.is_set():
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._server))
            self._open |= {client, server}
            for ends in ((client, server), (server, client)):
                threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
