"""A real S3 server on loopback for tests, behind a proxy that counts requests and can be told to fail.

By default the server is moto's, in a thread of the test process. `ADAPLR_TEST_S3=http://host:port` names any other
(MinIO, Ceph, ...), which takes its credentials from the usual AWS_* variables; the same tests run against it.
"""

import http.client
import os
import threading
import uuid
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

BUCKET = "adaplr-tests"
REGION = "us-east-1"
Fault = Literal["503", "cut", "denied", "lost"]  # lost: the work is done, and its answer does not arrive


class S3Place:
    """A bucket on a server, seen through the proxy.

    `requests` counts methods since `forget()`; `fault` makes every request fail in that way until it is None again, and
    `fail_at` only the request of that number (1 is the next one).
    """

    def __init__(self, upstream: str) -> None:
        self.requests: Counter[str] = Counter()
        self.paths: list[str] = []
        self.fault: Fault | None = None
        self.fail_at = 0
        self._lock = threading.Lock()
        place, target = self, urlsplit(upstream)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else an answer's body waits 40 ms for its headers to be acknowledged

            def forward(self) -> None:
                body = self._body()
                fault = place._next_fault(self.command, self.path)
                if fault == "cut":
                    self.close_connection = True
                    self.connection.close()
                    return
                if fault in _FAULTS:
                    self._answer(*_FAULTS[fault], [])
                    return
                upstream = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "expect")}
                headers["Content-Length"] = str(len(body))
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                content = answer.read()
                upstream.close()
                if fault == "lost":
                    self.close_connection = True
                    self.connection.close()
                    return
                self._answer(answer.status, content, answer.getheaders())

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def _body(self) -> bytes:
                if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return body

            def _answer(self, status: int, body: bytes, headers: list[tuple[str, str]]) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                if not any(name.lower() == "content-length" for name, _ in headers):
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.endpoint = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.requests[method] += 1
            self.paths.append(f"{method} {path}")
            if self.fail_at and self.requests.total() == self.fail_at:
                return "denied"  # the one answer that no client tries again
            return self.fault

    def forget(self) -> None:
        """Count anew, and fail no more."""
        with self._lock:
            self.requests.clear()
            self.paths.clear()
            self.fault, self.fail_at = None, 0

    def uri(self, name: str = "run") -> str:
        """A folder that nobody used before."""
        query = f"scheme=http&endpoint_override={self.endpoint}&region={REGION}"
        return f"s3://{BUCKET}/{uuid.uuid4().hex[:8]}/{name}?{query}"

    def client(self) -> object:
        """A boto3 client, for looks from outside."""
        import boto3

        return boto3.client("s3", endpoint_url=f"http://{self.endpoint}", region_name=REGION)

    def keys(self, uri: str) -> list[str]:
        """Names of all objects below a folder, relative to it; without markers of folders."""
        prefix = urlsplit(uri).path.strip("/") + "/"
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)  # type: ignore[attr-defined]
        found = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return sorted(key.removeprefix(prefix) for key in found if not key.endswith("/"))

    def close(self) -> None:
        """End the proxy."""
        self._server.shutdown()
        self._server.server_close()


_FAULTS = {
    "503": (503, b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"),
    "denied": (403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"),
}


def start_s3() -> S3Place:
    """The server that the environment names, or moto's, with the tests' bucket in it."""
    upstream = os.environ.get("ADAPLR_TEST_S3")
    if not upstream:
        from moto.server import ThreadedMotoServer
        from werkzeug.serving import WSGIRequestHandler

        WSGIRequestHandler.disable_nagle_algorithm = True
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "tests")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "tests")
        os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
        moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        moto.start()
        upstream = f"http://127.0.0.1:{moto.get_host_and_port()[1]}"
    place = S3Place(upstream)
    place.client().create_bucket(Bucket=BUCKET)  # type: ignore[attr-defined]
    place.forget()
    return place
