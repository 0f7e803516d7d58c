"""A made-up but lifelike run folder: noise falls, gamma rises, and the files are those of a real run."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_adaplr.data.store_writer import write_store
from ray_adaplr.report.page import report_page

DIGITS = [str(digit) for digit in range(10)]


def write_run(
    folder: Path,
    *,
    n: int = 400,
    epochs: int = 12,
    classes: list[str] = DIGITS,
    truth: bool = True,
    finished: bool = True,
    seed: int = 0,
    images: np.ndarray | None = None,
    ids: list[str] | None = None,
    alpha: float = 0.9,
) -> Path:
    """Writes a run of `n` images into `folder` and its target store beside it."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    ids = ids or [f"img-{i:05d}" for i in range(n)]
    target = folder.parent / f"{folder.name}-store"
    if images is None:
        images = rng.integers(0, 256, (n, 28, 28, 1), np.uint8)
    true = rng.integers(0, len(classes), n)
    write_store(target, [(ids, images)], classes=classes, domain="made-up", truth=true if truth else None)
    labels = np.where(rng.random(n) < 0.3, (true + rng.integers(1, len(classes), n)) % len(classes), true)
    stubborn = rng.random(n) < 0.15
    initial, changed = labels.copy(), np.full(n, -1)
    with (folder / "metrics.jsonl").open("w") as file:
        for epoch in range(epochs):
            progress = (epoch + 1) / epochs
            wrong = labels != true
            confidence = rng.beta(1 + np.where(wrong, 1, 18) * progress, 1 + np.where(wrong, 3, 0.6) * progress)
            gamma = float((confidence > alpha).mean())
            move = wrong & ~stubborn & (rng.random(n) < 0.35 * progress)
            labels, changed = np.where(move, true, labels), np.where(move, epoch, changed)
            shares = np.bincount(labels, minlength=len(classes)) / n
            record = {"stage": "refine", "epoch": epoch, "gamma": gamma, "hcs": gamma, "reassigned": float(move.mean())}
            record |= {"agreement": 0.7 + 0.28 * progress, "entropy": 2 - 1.8 * progress, "diversity": 2.2}
            record |= {"seconds": 2.5, "images_per_s": n / 2.5, "min_class_share": float(shares.min())}
            record["confidence_histogram"] = np.histogram(confidence, 20, (0, 1))[0].tolist()
            if truth:
                record |= {
                    "noise": float((labels != true).mean()),
                    "hcs_noise": float(wrong[confidence > alpha].mean()),
                }
                record["confidence_histogram_noisy"] = np.histogram(confidence[wrong], 20, (0, 1))[0].tolist()
            file.write(json.dumps(record) + "\n")
        file.write(json.dumps({"stage": "distill", "epoch": 0, "loss": 0.4, "seconds": 1.5}) + "\n")
    settings = {"preset": "robust", "epochs": epochs, "alpha": alpha, "n_e": 3, "n_rl": 3, "seed": seed}
    (folder / "config.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
    command = f"ray-adaplr adapt --source source --target {target} --out {folder.name}"
    (folder / "run.json").write_text(json.dumps({"source": ["source"], "target": [str(target)], "command": command}))
    table = {"id": pa.array(ids), "initial_label": pa.array(initial, pa.int32())}
    table |= {"refined_label": pa.array(labels, pa.int32()), "confidence": pa.array(confidence, pa.float32())}
    table |= {"high_confidence": pa.array(confidence > alpha), "last_changed_epoch": pa.array(changed, pa.int32())}
    pq.write_table(pa.table(table), folder / "labels.parquet")
    if finished:
        before, after = float((initial != true).mean()), float((labels != true).mean())
        summary = {"inferred": 1 - before, "refined": 1 - after, "target": 0.97, "noise_before": before}
        summary |= {"noise_after": after, "hcs_noise": 0.004}
        summary = {key: value if truth else None for key, value in summary.items()}
        summary |= {"changed_share": float((initial != labels).mean()), "hcs_share": gamma, "warnings": []}
        summary |= {"seconds": {"infer": 1.2, "refine": 2.5 * epochs, "distill": 1.5}, "seed": seed}
        summary |= {"versions": {"python": "3.11", "torch": "2.6"}, "command": command}
        summary |= {"num_images": n, "num_classes": len(classes), "classes": classes}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(name: str = "run", **how: object) -> Path:
        return write_run(tmp_path / name, **how)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with ground truth and its report; not to be changed."""
    run = write_run(tmp_path_factory.mktemp("runs") / "run")
    (run / "report.html").write_text(report_page(run))
    return run


@pytest.fixture(scope="session")
def page(finished_run: Path) -> str:
    """The page of that run."""
    return (finished_run / "report.html").read_text()


@pytest.fixture(scope="session")
def large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run of 25,000 images; they are noise, the worst to compress."""
    run = write_run(tmp_path_factory.mktemp("large") / "run", n=25_000, epochs=200)
    (run / "report.html").write_text(report_page(run))
    return run / "report.html"


@pytest.fixture(scope="session")
def oddly_named_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with class names that try to break it."""
    names = ["zero", "one", 'a "quoted", name', "<b>bold</b>"]
    run = write_run(tmp_path_factory.mktemp("odd") / "run", classes=names)
    (run / "report.html").write_text(report_page(run))
    return run / "report.html"
