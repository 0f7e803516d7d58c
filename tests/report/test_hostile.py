"""Whatever text a user, a file or an error brings onto a page stays text."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from markupsafe import escape
from s3_server import S3Place

from ray_adaplr.report.page import comparison_page, report_page
from ray_adaplr.report.sweep import SweepOutcome, sweep_page
from ray_adaplr.storage.layout import DIAGNOSTIC

Make = Callable[..., Path]
FOLDER = "<script>alert(1)<&\"'"  # a folder's name has no slash
HOSTILE = "</title></script></style><script>alert('&\"')</script><img src=x onerror=alert(1)>"


def texts(page: str) -> str:
    """The page without its own style and scripts."""
    return re.sub(r"<style>.*?</style>|<script>\"use strict\".*?</script>", "", page, flags=re.DOTALL)


def check(page: str, own_scripts: int) -> None:
    assert page.lower().count("<script") == own_scripts
    assert "<img src=x" not in page
    assert str(escape(HOSTILE)) in page
    assert "onerror" not in re.sub(r"&lt;img src=x onerror=alert\(1\)&gt;|u003cimg src=x onerror", "", texts(page))


def spoil(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def hostile_run(make_run: Make, name: str = FOLDER, **how: Any) -> Path:
    """A run in which every text that a user can influence is hostile."""
    run = make_run(name, n=60, epochs=3, classes=[HOSTILE, f"{HOSTILE} 2", "$x^2$"], **how)
    with (run / "config.toml").open("a") as file:
        file.write(f"prior = {json.dumps(HOSTILE)}\n")
    spoil(run / "run.json", command=HOSTILE)
    return run


def test_a_report(make_run: Make) -> None:
    run = hostile_run(make_run, ids=[f'{HOSTILE}"{i}' for i in range(60)])
    domains = {HOSTILE: 0.5, "other": 0.6}
    shares = {name: {"num_images": 5, "changed_share": 0.5, "hcs_share": 0.5} for name in domains}
    found = {"target_per_domain": domains, "labels_per_domain": shares, "versions": {HOSTILE: HOSTILE}}
    spoil(run / "summary.json", warnings=[HOSTILE], **found)
    page = report_page(run)
    check(page, own_scripts=2)  # the page's own, and its list of classes
    names = re.search(r'id="classes">(.*?)</script>', page)
    assert names is not None
    assert json.loads(names[1]) == [HOSTILE, f"{HOSTILE} 2", "$x^2$"]
    assert f"<h1>{escape(FOLDER)}</h1>" in page


def test_a_report_whose_images_are_gone(make_run: Make) -> None:
    run = hostile_run(make_run)
    spoil(run / "run.json", target=[HOSTILE])
    check(report_page(run), own_scripts=1)


def test_a_comparison(make_run: Make) -> None:
    runs = [hostile_run(make_run), hostile_run(make_run, f"{FOLDER}2", seed=1)]
    with (runs[0] / "config.toml").open("a") as file:
        file.write(f"models = {json.dumps(HOSTILE)}\n")
    check(comparison_page(runs), own_scripts=0)


@pytest.mark.parametrize("ended", [True, False])
def test_a_sweep(ended: bool) -> None:
    def trial(number: str, prior: str) -> dict[str, Any]:
        lines = [{"stage": "refine", "epoch": 0, "gamma": 0.5, "noise": 0.1}]
        trial = {"trial": number, "settings": {"prior": prior}, "score": 0.5, "gamma": 0.5, "agreement": 0.9}
        trial |= {"epochs_run": 1, "lines": lines, "finished": ended, "error": None if ended else HOSTILE}
        return trial | {DIAGNOSTIC: 0.9}

    trials = [trial(HOSTILE, HOSTILE), trial("1", "uniform")]
    page = sweep_page(SweepOutcome(FOLDER, HOSTILE, trials, ["prior"], trials[0] if ended else None))
    check(page, own_scripts=0)
    assert str(escape(FOLDER)) in page


def test_hostile_ids_reach_the_corrections_whole(make_run: Make) -> None:
    ids = [f'{HOSTILE}"{i}' for i in range(60)]
    run = hostile_run(make_run, ids=ids)
    found = {str(text) for text in pq.read_table(run / "labels.parquet")["id"].to_pylist()}
    shown = re.findall(r'data-id="([^"]*)"', report_page(run))
    assert shown
    assert {str(escape(identity)) for identity in found} >= set(shown)


@pytest.mark.usefixtures("unrendered")
def test_keys_of_uris_are_on_no_page(make_run: Make, s3: S3Place) -> None:
    place = "s3://AKIAKEY:topsecret@bucket/store"
    gone = s3.uri("store").replace("s3://", "s3://AKIAKEY:topsecret@")
    runs = [make_run("a", epochs=1), make_run("b", epochs=1, alpha=0.8)]
    for run in runs:
        spoil(run / "run.json", command=f"ray-adaplr adapt --target {place}", target=[gone])
        spoil(run / "summary.json", warnings=[f"cannot read {place}"])
        with (run / "config.toml").open("a") as file:
            file.write(f'prior = "{place}/{run.name}"\n')
    for page in (report_page(runs[0]), comparison_page(runs)):
        assert "topsecret" not in page
        assert "s3://***@bucket/store" in page
