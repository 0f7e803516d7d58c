"""The real server on loopback: predict's numbers, a sentence for every bad upload, one page, and a clean end.

One server serves the whole file; the last test ends it.
"""

import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from PIL import Image

from ray_adaplr.cli.main import main
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import Result
from ray_adaplr.stages.evaluate import images_for, predict
from ray_adaplr.storage.models import load_model

pytest.importorskip("starlette", reason="Ray Serve is not installed (it comes with the extra serve)")
from ray_adaplr.integrations import serving
from ray_adaplr.integrations.serve_options import ServeOptions
from ray_adaplr.integrations.serving import Predictor, open_models, page

OLD_RAY = tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60)
pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(OLD_RAY, reason="serving needs Ray 2.60, as the extra serve says"),
]
MOST_BYTES, MOST_PIXELS = 200_000, 1_000_000
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
HEADLESS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"


class Server:
    """`ray-adaplr serve` in a process of its own."""

    def __init__(self, run: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        limits = ["--max-bytes", str(MOST_BYTES), "--max-pixels", str(MOST_PIXELS)]
        command = [sys.executable, "-m", "ray_adaplr", "serve", run, "--replicas", "2", "--port", str(self.port)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen([*command, *limits], **pipes, start_new_session=True)
        assert self.process.stdout
        self.said = [self.process.stdout.readline(), self.process.stdout.readline()]  # it answers from here on

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """A request's status and answer, as JSON where it is; a body that is no bytes goes in chunks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        is_json = response.headers.get("content-type") == "application/json"
        return response.status, json.loads(text) if is_json else text.decode()

    def predict(self, body: Any, **headers: str) -> tuple[int, Any]:
        return self.ask("POST", "/predict", body, **headers)

    def processes(self) -> list[int]:
        """Those that the server started and itself, by their parents."""
        parents = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
        found = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return sorted(found)


@pytest.fixture(scope="module")
def server(straight_run: Result) -> Iterator[Server]:
    running = Server(straight_run.path)
    assert "serving" in running.said[0], "".join(running.said) + running.process.communicate(timeout=60)[0]
    yield running
    if running.process.poll() is None:
        running.process.send_signal(signal.SIGINT)
        running.process.wait(120)


@pytest.fixture(scope="module")
def photos(straight_run: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred digits as files of several formats, modes and sizes."""
    from ray_adaplr.data.store import ImageStore

    folder = tmp_path_factory.mktemp("photos")
    store = ImageStore.open(*straight_run.run.origin()["target"])
    for row, pixels in enumerate(store.read(np.arange(200))):
        image = Image.fromarray(pixels.squeeze()).resize((20 + row % 30, 18 + row % 41))
        mode, suffix = (("L", "png"), ("RGB", "jpg"), ("RGBA", "png"), ("CMYK", "jpg"), ("P", "gif"))[row % 5]
        image.convert(mode).save(folder / f"{row:03d}.{suffix}")
    return folder


@pytest.fixture(scope="module")
def expected(straight_run: Result, photos: Path) -> dict[str, dict[str, Any]]:
    """What `predict` says of them, by name."""
    with images_for([straight_run.classifier], str(photos), unlabelled=True) as images:
        return {row["id"]: row for row in predict(straight_run.classifier, images, True).to_pylist()}


def same(answer: dict[str, Any], row: dict[str, Any]) -> None:
    assert (answer["label"], answer["class"]) == (row["label"], row["class"])
    assert answer["confidence"] == pytest.approx(row["confidence"], abs=1e-5)
    shares = {name.removeprefix("p_"): value for name, value in row.items() if name.startswith("p_")}
    assert answer["probabilities"] == pytest.approx(shares, abs=1e-3)  # the table's have half precision


def test_two_hundred_requests_in_a_row_get_the_numbers_of_predict(
    server: Server, photos: Path, expected: dict[str, dict[str, Any]]
) -> None:
    assert len(expected) == 200
    for name, row in expected.items():
        status, answer = server.predict((photos / name).read_bytes())
        assert status == 200, answer
        same(answer, row)


def test_many_requests_at_once_get_the_same_numbers(
    server: Server, photos: Path, expected: dict[str, dict[str, Any]]
) -> None:
    names = list(expected)[:96]
    with ThreadPoolExecutor(24) as clients:
        answers = list(clients.map(lambda name: server.predict((photos / name).read_bytes()), names))
    for name, (status, answer) in zip(names, answers):
        assert status == 200, answer
        same(answer, expected[name])


def test_a_body_may_say_that_it_is_an_image_or_any_bytes(
    server: Server, photos: Path, expected: dict[str, dict[str, Any]]
) -> None:
    name = next(iter(expected))
    for kind in ("image/png", "application/octet-stream", "application/x-www-form-urlencoded"):  # the last is curl's
        status, answer = server.predict((photos / name).read_bytes(), Content_Type=kind)
        assert status == 200, answer
        same(answer, expected[name])


def encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def noise(side: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (side, side, 3), dtype=np.uint8))


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    chunks = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def bad_uploads() -> dict[str, tuple[int, str, dict[str, Any]]]:
    """What is sent, the status it gets, and words of the sentence."""
    grey, small = Image.new("L", (16, 16)), encoded(noise(32), "PNG")
    photo = encoded(noise(64), "JPEG")
    film = {"save_all": True, "append_images": [Image.new("L", (16, 16), 9)]}
    svg = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><rect width='9' height='9'/></svg>"

    def sent(body: Any = small, kind: str = "", method: str = "POST", path: str = "/predict") -> dict[str, Any]:
        headers = {"Content_Type": kind} if kind else {}
        return {"method": method, "path": path, "body": body, **headers}

    return {
        "nothing": (400, "no bytes", sent(b"")),
        "text": (422, "not an image", sent(b"hello, is this an image?")),
        "NUL bytes": (422, "not an image", sent(bytes(4096))),
        "a truncated JPEG": (422, "decoded", sent(photo[: len(photo) // 2])),
        "a JPEG's first bytes": (422, "decoded", sent(photo[:20])),
        "a truncated PNG": (422, "decoded", sent(small[:-900])),
        "a PNG without pixels": (422, "decoded", sent(png_of(16, 16))),
        "SVG": (422, "not an image", sent(svg)),
        "SVG that says so": (422, "not an image", sent(svg, "image/svg+xml")),
        "PostScript": (422, "not an image", sent(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")),
        "a pickle": (422, "not an image", sent(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07os.exit\x94.")),
        "a bomb": (413, "pixels", sent(png_of(50_000, 50_000))),
        "too many pixels": (413, "2,250,000 pixels", sent(encoded(Image.new("1", (1500, 1500)), "PNG"))),
        "no size": (422, "decoded", sent(png_of(0, 0))),
        "a film as GIF": (422, "2 pictures", sent(encoded(grey, "GIF", **film))),
        "a film as PNG": (422, "2 pictures", sent(encoded(grey, "PNG", **film))),
        "two pages of TIFF": (422, "2 pictures", sent(encoded(grey, "TIFF", **film))),
        "colours nobody converts": (422, "decoded", sent(encoded(Image.new("LAB", (16, 16)), "TIFF"))),
        "too many bytes": (413, "200,000 bytes", sent(bytes(3 * MOST_BYTES))),
        "too many bytes in chunks": (413, "200,000 bytes", sent(iter([bytes(90_000)] * 5))),
        "JSON": (415, "application/json", sent(b"{}", "application/json")),
        "an image as text": (415, "text/plain", sent(small, "text/plain")),
        "a form": (415, "multipart/form-data", sent(small, "multipart/form-data; boundary=x")),
        "GET": (405, "takes POST", sent(None, method="GET")),
        "DELETE": (405, "takes POST", sent(None, method="DELETE")),
        "POST to the page": (405, "takes GET", sent(path="/")),
        "a wrong path": (404, "/predict", sent(path="/predict/")),
        "a path upwards": (404, "/predict", sent(None, method="GET", path="/../../etc/passwd")),
    }


def test_every_bad_upload_gets_a_4xx_with_one_sentence_and_serving_goes_on(server: Server, photos: Path) -> None:
    good = (photos / "000.png").read_bytes()
    kinds = bad_uploads()
    assert len(kinds) > 20
    for what, (wanted, words, request) in kinds.items():
        status, answer = server.ask(**request)
        assert status == wanted, f"{what}: {status} {answer}"
        assert list(answer) == ["error"], what
        assert words in answer["error"], f"{what}: {answer}"
        assert "\n" not in answer["error"], what
        assert "0x" not in answer["error"], what  # an object's address helps nobody
        assert server.predict(good)[0] == 200, f"after {what}"


def test_a_client_that_leaves_in_the_middle_does_no_harm(server: Server, photos: Path) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nhalf")
    assert server.predict((photos / "000.png").read_bytes())[0] == 200


def test_health_names_the_model_its_input_and_the_classes(server: Server) -> None:
    status, answer = server.ask("GET", "/health")
    assert status == 200
    assert answer["status"] == "ok"
    assert answer["model"] == "digit_cnn"
    assert answer["classes"] == list("0123456789")
    assert answer["input"].startswith("16x16 grey")


def test_a_second_server_on_the_same_port_is_refused_with_a_sentence(
    server: Server, straight_run: Result, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", straight_run.path, "--port", str(server.port)]) == 2
    [sentence] = capsys.readouterr().err.splitlines()
    assert f"--port {server.port} cannot be used" in sentence


@pytest.mark.skipif(shutil.which("ss") is None, reason="ss lists the ports")
def test_it_and_its_replicas_listen_on_loopback_alone(server: Server) -> None:
    ours, places = set(server.processes()), []
    for line in subprocess.run(["ss", "-ltnp"], capture_output=True, text=True, check=True).stdout.splitlines()[1:]:
        if ours & set(map(int, re.findall(r"pid=([0-9]+)", line))):
            places.append(line.split()[3])
    assert f"127.0.0.1:{server.port}" in places
    assert [place for place in places if "127.0.0.1" not in place] == []


def test_the_page_fetches_nothing_and_names_are_text(server: Server) -> None:
    status, text = server.ask("GET", "/")
    assert status == 200
    assert not re.search(r"(?:https?:)?//", text)
    spec = ModelSpec(num_classes=2, channels=1, image_size=(16, 16), classes=("<b>a</b>", "b"))
    text, policy = page(ServeOptions(folder="s3://KEY:SECRET@bucket/<script>alert(1)"), spec)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text
    assert "SECRET" not in text
    assert "default-src 'none'" in policy


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (it comes with dev)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*HEADLESS.split(), f"--user-data-dir={tmp_path / 'profile'}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="chromium and chromedriver are not on PATH")
def test_in_a_browser_a_chosen_image_gets_its_class_and_a_bad_file_its_sentence(
    server: Server, browser: Any, photos: Path, expected: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    def shown(identity: str) -> str:
        return browser.find_element("id", identity).text

    browser.get(f"http://127.0.0.1:{server.port}/")
    name, row = next(iter(expected.items()))
    browser.find_element("id", "file").send_keys(str(photos / name))
    WebDriverWait(browser, 60).until(lambda _: shown("class") == row["class"])
    assert f"{100 * row['confidence']:.1f} %" in shown("classes")
    assert browser.get_log("browser") == []
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    browser.find_element("id", "file").send_keys(str(bad))
    WebDriverWait(browser, 60).until(lambda _: "not an image" in shown("problem"))
    assert shown("class") == ""
    dropped = """const files = new DataTransfer();
        files.items.add(new File([Uint8Array.from(arguments[0])], "digit"));
        document.dispatchEvent(new DragEvent("drop", {dataTransfer: files, bubbles: true, cancelable: true}));"""
    browser.execute_script(dropped, list((photos / name).read_bytes()))
    WebDriverWait(browser, 60).until(lambda _: shown("class") == row["class"])


def test_an_ensemble_answers_as_predict_does_with_all_its_members(
    straight_run: Result, photos: Path, tmp_path: Path
) -> None:
    replica = Predictor(ServeOptions(folder=straight_run.path, ensemble=True))
    members = [load_model(f"{straight_run.path}/ensemble/{k}") for k in range(3)]
    with images_for(members, str(photos), unlabelled=True) as images:
        rows = predict(members, images, True).to_pylist()
        answers = replica._predict_together(images.read(np.arange(len(images))))
    for answer, row in zip(answers, rows):
        same(answer, row)


@pytest.mark.parametrize(
    ("node", "asked", "replicas", "each"),
    [
        ({"CPU": 4.0, "GPU": 0.0}, {}, 4, {"num_cpus": 1.0}),
        ({"CPU": 4.0, "GPU": 0.0}, {"replicas": 1}, 1, {"num_cpus": 1.0}),
        ({"CPU": 2.0, "GPU": 0.0}, {"replicas": 3}, 3, {"num_cpus": 0.6666}),
        ({"CPU": 8.0, "GPU": 2.0}, {}, 2, {"num_cpus": 0, "num_gpus": 1.0}),
        ({"CPU": 8.0, "GPU": 2.0}, {"replicas": 4}, 4, {"num_cpus": 0, "num_gpus": 0.5}),
    ],
)
def test_ray_serves_own_command_builds_it_with_a_replica_per_gpu_or_core(
    node: dict[str, float], asked: dict[str, int], replicas: int, each: dict[str, float], monkeypatch: Any
) -> None:
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

    monkeypatch.setattr(serving, "live_nodes", lambda: [node])
    deployment = build(serving.application, {"folder": "runs/x", **asked})._bound_deployment
    assert deployment.num_replicas == replicas
    wanted = deployment.ray_actor_options
    assert {name: wanted.get(name) for name in each} == each


def test_what_cannot_be_served_is_refused_before_anything_starts(straight_run: Result, tmp_path: Path) -> None:
    model = f"{straight_run.path}/target_model"
    assert open_models(ServeOptions(folder=model))[0].spec.num_classes == 10
    with pytest.raises(InputError, match="no trained members"):
        open_models(ServeOptions(folder=model, ensemble=True))
    with pytest.raises(InputError, match="there is no model at"):
        open_models(ServeOptions(folder=str(tmp_path)))
    unfinished = tmp_path / "run"
    shutil.copytree(f"{straight_run.path}/ensemble", unfinished / "ensemble")
    with pytest.raises(InputError, match="no target model yet"):
        open_models(ServeOptions(folder=str(unfinished)))
    sizeless = tmp_path / "sizeless"
    shutil.copytree(model, sizeless)
    described = json.loads((sizeless / "model.json").read_text())
    for size, words in ((None, "does not say"), ([16, 32], "16x32")):
        (sizeless / "model.json").write_text(json.dumps({**described, "image_size": size}))
        with pytest.raises(InputError, match=words):
            open_models(ServeOptions(folder=str(sizeless)))


def test_without_ray_serve_one_sentence_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "starlette" or name == serving.__name__]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert main(["serve", "x"]) == 2
    said = capsys.readouterr().err
    assert said == "ray-adaplr: serve needs Ray Serve; pip install 'ray-adaplr[serve]'\n"


def test_ctrl_c_ends_it_with_130_and_leaves_no_process(server: Server) -> None:
    started = server.processes()
    assert len(started) > 4
    os.kill(server.process.pid, signal.SIGINT)
    said = server.process.communicate(timeout=300)[0]
    assert server.process.returncode == 130
    assert said.strip() == "stopped"
    deadline = time.monotonic() + 60
    while (left := [pid for pid in started if Path(f"/proc/{pid}").exists()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
