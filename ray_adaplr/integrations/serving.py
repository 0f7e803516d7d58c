"""`ray-adaplr serve`: a model behind Ray Serve, which answers `POST /predict` as `ray-adaplr predict` would.

A replica takes requests, decodes, and predicts in batches; whatever is wrong with a request gets a 4xx with one
sentence. A cluster's own Ray Serve takes `application`: `serve run ray_adaplr.integrations.serving:application`.
"""

import asyncio
import contextlib
import http.client
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import ray
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from ray_adaplr.config import ScalingConfig
from ray_adaplr.core.devices import accelerator_or_cpu
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.pictures import UNDECODABLE, decode, frames_of, open_picture, why_undecodable
from ray_adaplr.engine.auth import variables
from ray_adaplr.engine.placement import connected, live_nodes
from ray_adaplr.errors import InputError, RunFailed, first_line
from ray_adaplr.integrations.serve_options import ServeOptions
from ray_adaplr.integrations.sources import open_model
from ray_adaplr.stages.evaluate import mean_logits
from ray_adaplr.storage.digests import script_digest
from ray_adaplr.storage.folder import Folder, absolute
from ray_adaplr.storage.layout import ENSEMBLE, SPEC, TARGET_MODEL
from ray_adaplr.storage.secrets import redacted

BATCH, WAIT = 32, 0.005  # images that are predicted together at most, and seconds the first of them waits for others
WAITING = 256  # requests that may wait for a replica; more get a 503
METHODS = {"/": ("GET", "HEAD"), "/health": ("GET", "HEAD"), "/predict": ("POST",)}
ANY = "application/octet-stream"
CURL = "application/x-www-form-urlencoded"  # what curl calls any body, unless it is told
LONGEST_START = 600  # seconds; it takes 10 to 20, and minutes on a busy machine
PATIENCE = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": str(LONGEST_START)}  # by default the proxy is killed after 5 s
QUIET = LoggingConfig(log_level="ERROR", enable_access_log=False)


class BadRequest(Exception):
    """A request that gets a 4xx: the code, and one sentence."""

    def __init__(self, code: int, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.code, self.headers = code, headers


class Predictor:
    """A replica: the models, and the three paths they are reached at."""

    def __init__(self, options: ServeOptions) -> None:
        _keep_to_loopback()
        torch.set_num_threads(1)  # there are as many replicas as cores
        self._options, self._models = options, open_models(options)
        self._spec, self._device = self._models[0].spec, accelerator_or_cpu()
        self._names = self._spec.class_names
        self._page, self._policy = page(options, self._spec)
        self._decoding = ThreadPoolExecutor(1)  # one large image in memory at a time

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        try:
            path = checked_path(request)
            if path == "/":
                return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})
            if path == "/health":
                return JSONResponse({"status": "ok", **about(self._spec), "models": len(self._models)})
            picture = await read_body(request, self._options.max_bytes)
            check_body(picture, request.headers.get("content-type", ""))
            loop, most = asyncio.get_running_loop(), self._options.max_pixels
            image = await loop.run_in_executor(self._decoding, read_image, picture, self._spec, most)
            return JSONResponse(await self._predict(image))
        except BadRequest as error:
            return JSONResponse({"error": str(error)}, error.code, error.headers)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody will read it

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def _predict(self, images: list[np.ndarray]) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self._predict_together, np.stack(images))

    def _predict_together(self, images: np.ndarray) -> list[dict[str, Any]]:
        """What each of the images [n, h, w, c] shows."""
        logits = mean_logits(self._models, lambda rows: images[rows], len(images), self._device)
        answers = []
        for probs in torch.from_numpy(logits).softmax(1):
            label = int(probs.argmax())
            known = {"label": label, "class": self._names[label], "confidence": float(probs[label])}
            answers.append({**known, "probabilities": dict(zip(self._names, probs.tolist()))})
        return answers


def _keep_to_loopback() -> None:
    """On a Ray that listens on 127.0.0.1 alone, let this replica do so too.

    Replicas have a port for one another, open on all interfaces, which unpickles what a client with Ray's token sends.
    """
    if ray.util.get_node_ip_address() == "127.0.0.1":
        kind: Any = type(grpc.aio.server())
        for name in ("add_insecure_port", "add_secure_port"):
            add = getattr(kind, name)
            setattr(kind, name, lambda server, at, *how, add=add: add(server, at.replace("[::]", "127.0.0.1"), *how))


def open_models(options: ServeOptions) -> list[Classifier]:
    """The target model or the members of a run, or the model of a folder; InputError when it cannot be served."""
    folder = Folder(options.folder)
    members = sorted(path.split("/")[0] for path in (folder / ENSEMBLE).files() if path.endswith(f"/{SPEC}"))
    if options.ensemble and not members:
        raise InputError(f"--ensemble: {options.folder} holds no trained members; name a run that was refined")
    if options.ensemble:
        places = [folder / f"{ENSEMBLE}/{name}" for name in members]
    elif members and not (folder / TARGET_MODEL).exists(SPEC):
        raise InputError(f"{options.folder} has no target model yet; finish the run, or serve its --ensemble")
    else:
        places = [folder]
    models = [open_model(place.uri, options.factory) for place in places]
    size = models[0].spec.image_size
    if not size or size[0] != size[1]:
        known = f"takes images of {size[0]}x{size[1]} pixels" if size else "does not say how large its images are"
        raise InputError(f"the model in {options.folder} {known}; only a model of square images can be served")
    return models


def about(spec: ModelSpec) -> dict[str, Any]:
    """What is served, for /health and the page."""
    return {"model": spec.name, "input": spec.input, "classes": spec.class_names}


def checked_path(request: Request) -> str:
    """The path of a request; BadRequest when there is none such, or it takes another method."""
    path = request.url.path
    if path not in METHODS:
        raise BadRequest(404, f"there is nothing at this path; there are {', '.join(METHODS)}")
    if request.method not in (allowed := METHODS[path]):
        raise BadRequest(405, f"{path} takes {allowed[0]}, not {request.method[:20]}", Allow=", ".join(allowed))
    return path


async def read_body(request: Request, most: int) -> bytes:
    """The body, of which no more than `most` bytes are kept.

    A longer one is read on, up to ten times as far, so that its sender hears the refusal and no broken connection.
    """
    kept, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= most:
            kept += chunk
        elif size > 10 * most:
            break
    if size > most:
        raise BadRequest(413, f"the upload has more than {most:,} bytes; send a smaller image")
    return bytes(kept)


def check_body(body: bytes, content_type: str) -> None:
    """BadRequest for a body that says it is no image, or is empty."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in ("", ANY, CURL) and not kind.startswith("image/"):
        raise BadRequest(415, f"a body of type {kind[:80]} is no image; send its bytes as image/* or {ANY}")
    if not body:
        raise BadRequest(400, "there are no bytes of an image; send them as the body")


def read_image(picture: bytes, spec: ModelSpec, most: int) -> np.ndarray:
    """The image as the model takes it, uint8 [h, w, c]; BadRequest for what `predict` leaves out."""
    assert spec.image_size
    try:
        image = open_picture(picture)
        if (pixels := image.width * image.height) > most:
            raise BadRequest(413, f"the image has {pixels:,} pixels and at most {most:,} are taken; send a smaller one")
        if (frames := frames_of(image)) > 1:
            raise BadRequest(422, f"the file holds {frames} pictures; send one")
        return decode(picture, spec.image_size[0], spec.channels, spec.aspect)
    except Image.DecompressionBombError as error:
        raise BadRequest(413, f"the image has too many pixels, {most:,} at most; send a smaller one") from error
    except UNDECODABLE as error:
        raise BadRequest(422, f"the image cannot be decoded: {why_undecodable(error)}") from error


def page(options: ServeOptions, spec: ModelSpec) -> tuple[str, str]:
    """The page to drop an image on, and the policy that lets its own script run and no other."""
    environment = Environment(
        loader=PackageLoader("ray_adaplr.integrations"), autoescape=True, undefined=StrictUndefined
    )
    script = files("ray_adaplr.integrations").joinpath("templates/serve.js").read_text("utf-8")
    shown = {"name": redacted(Path(options.folder).name), "max_bytes": f"{options.max_bytes:,}", **about(spec)}
    text = environment.get_template("serve.html").render(script=script, **shown)
    digest = script_digest(script)
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src blob: data:; "
    return text, policy + "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def application(options: ServeOptions) -> serve.Application:
    """The application for Ray Serve, with one replica per GPU, or where there is none per core."""
    nodes = live_nodes()
    gpus, cpus = (int(sum(node[kind] for node in nodes)) for kind in ("GPU", "CPU"))
    seats = gpus or max(1, cpus)
    replicas = options.replicas or seats
    share = math.floor(1e4 * min(1.0, seats / replicas)) / 1e4  # Ray counts in ten-thousandths
    deployed = serve.deployment(
        name="predictor",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 0, "num_gpus": share} if gpus else {"num_cpus": share},
        max_ongoing_requests=2 * BATCH,
        max_queued_requests=WAITING,
        graceful_shutdown_timeout_s=2,
        logging_config=QUIET,
    )
    return deployed(Predictor).bind(options)


def run_server(options: ServeOptions, say: Callable[[str], None] = print) -> None:
    """Serve on a Ray of its own until the process is interrupted; `say` is told when requests are answered."""
    options = options.model_copy(update={"folder": absolute(options.folder)})
    spec = open_models(options)[0].spec  # refused before Ray starts
    check_port(options.host, options.port)
    accelerator_or_cpu()  # for its warning, which in a replica nobody sees
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with variables(PATIENCE), connected(ScalingConfig(address="local")):  # whose end is the server's end
        try:
            where = HTTPOptions(host=options.host, port=options.port)
            with contextlib.suppress(TimeoutError):  # after 60 s, in which a busy machine may have no proxy yet
                serve.start(proxy_location="HeadOnly", http_options=where, logging_config=QUIET)
            serve.run(application(options), name="ray-adaplr", logging_config=QUIET)
            host = _wait_for_answer(options.host, options.port)
        except (RuntimeError, RayError, TimeoutError) as error:
            raise RunFailed(f"Ray Serve did not start: {first_line(error)}") from error
        say(f"serving {redacted(options.folder)}, which is fed {spec.input}")
        say(f"  http://{host}:{options.port}/ takes images; Ctrl-C ends it")
        threading.Event().wait()


def _wait_for_answer(host: str, port: int) -> str:
    """The host to ask at, once the server has answered there."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    deadline = time.monotonic() + LONGEST_START
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(host, port, timeout=10)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return f"[{host}]" if ":" in host else host
        time.sleep(0.1)
    raise TimeoutError(f"nothing answers at port {port} after {LONGEST_START} s")


def check_port(host: str, port: int) -> None:
    """InputError where nobody can listen: Ray Serve itself would share a port with another server in silence."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, proto) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that are ending do not count
            probe.bind(address)
    except socket.gaierror as error:
        raise InputError(f"--host {host} is no address; use 127.0.0.1, or 0.0.0.0 for all of this machine") from error
    except OSError as error:
        raise InputError(f"--port {port} cannot be used at {host} ({error.strerror}); choose another") from error
