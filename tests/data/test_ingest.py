"""`prepare`: bad images, restarts, choices of size and channels, and the parallel ways of working."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_trees import class_folders, picture, save

from ray_adaplr.cli.main import main
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.lease import hold

DATA = os.environ.get("ADAPLR_DATA")


def content_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file() and file.name != ".lock"}


@pytest.fixture
def bad_folder(tmp_path):
    folder = tmp_path / "pictures"
    cut = save(folder / "cut.jpg", picture(1, (400, 400)))
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 3 // 4])
    (folder / "text.jpg").write_text("this is no picture")
    save(folder / "palette.png", picture(2, (64, 64)).quantize(16))
    save(folder / "cmyk.jpg", picture(3, (64, 64), "CMYK"), quality=95)
    return folder


def test_bad_images_are_left_out_and_listed_with_their_reason(tmp_path, bad_folder):
    store = prepare(str(bad_folder), str(tmp_path / "s"), PrepareOptions(size=64))
    assert store.ids.to_pylist() == ["cmyk.jpg", "palette.png"]
    assert store.classes == []
    assert store.ground_truth() is None
    wanted = np.stack([np.asarray(picture(seed, (64, 64))) for seed in (3, 2)]).astype(int)
    assert np.abs(store.read(np.arange(2)).astype(int) - wanted).mean() < 12
    lines = (tmp_path / "s" / "rejected.csv").read_text().splitlines()
    assert lines[0] == "id,reason"
    assert lines[1].startswith("cut.jpg,")
    assert "truncated" in lines[1]
    assert lines[2] == "text.jpg,not an image of a known format"


def test_too_many_bad_images_stop_the_run_and_a_higher_share_goes_on(tmp_path, bad_folder):
    with pytest.raises(InputError, match=r"2 of the first 4 images .*rejected\.csv"):
        prepare(str(bad_folder), str(tmp_path / "s"), PrepareOptions(size=8, max_rejected=0.25))
    assert (tmp_path / "s" / "rejected.csv").exists()
    with pytest.raises(InputError, match=r"store\.json"):
        ImageStore.open(str(tmp_path / "s"))
    assert len(prepare(str(bad_folder), str(tmp_path / "s"), PrepareOptions(size=8, max_rejected=0.5))) == 2


def test_a_file_name_that_is_not_utf8_is_read_and_named_readably(tmp_path):
    save(tmp_path / "p" / "a.png", picture(0, (16, 16))).rename(
        os.fsdecode(os.fsencode(tmp_path / "p") + b"/caf\xe9.png")
    )
    assert prepare(str(tmp_path / "p"), str(tmp_path / "s")).ids.to_pylist() == ["caf\\xe9.png"]


def test_a_listed_file_that_is_missing_is_rejected(tmp_path):
    class_folders(tmp_path, size=(16, 16))
    (tmp_path / "l.txt").write_text("dog/000.jpg 1\ndog/gone.jpg 1\ncat/000.jpg 0\n")
    assert prepare(str(tmp_path / "l.txt"), str(tmp_path / "s")).ground_truth().tolist() == [1, 0]
    assert "dog/gone.jpg,No such file" in (tmp_path / "s" / "rejected.csv").read_text()


def test_a_folder_of_nothing_but_bad_images_makes_no_store(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.png").write_text("x")
    with pytest.raises(InputError, match="none of the 1 images"):
        prepare(str(tmp_path / "p"), str(tmp_path / "s"), PrepareOptions(size=8))
    with pytest.raises(InputError, match="no image of p can be opened"):
        prepare(str(tmp_path / "p"), str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


def test_rejected_images_take_their_labels_with_them(tmp_path):
    folder = class_folders(tmp_path / "pets", size=(16, 16))
    (folder / "cat" / "001.jpg").write_text("x")
    store = prepare(str(folder), str(tmp_path / "s"))
    assert store.ids.to_pylist()[:3] == ["cat/000.jpg", "cat/002.jpg", "dog/000.jpg"]
    assert store.ground_truth().tolist() == [0, 0, 1, 1, 1]


def test_size_and_channels_come_from_the_images_or_from_the_caller(tmp_path):
    grey = class_folders(tmp_path / "grey", size=(24, 24), mode="L")
    mixed = class_folders(tmp_path / "mixed", size=(24, 24), mode="L")
    save(mixed / "dog" / "colour.png", picture(0, (30, 24)))
    assert prepare(str(grey), str(tmp_path / "a")).image_shape == (24, 24, 1)
    with pytest.raises(InputError, match=r"sides from 24 to 30 pixels.*--size"):
        prepare(str(mixed), str(tmp_path / "b"))
    assert not (tmp_path / "b").exists()
    assert prepare(str(mixed), str(tmp_path / "c"), PrepareOptions(size=10, channels=1)).image_shape == (10, 10, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"size": 0}, "size=0"), ({"channels": 2}, "channels=2"), ({"aspect": "pad"}, "'pad'"), ({"limit": 0}, "limit=0")],
)
def test_impossible_options_are_told(tmp_path, options, words):
    with pytest.raises(InputError, match=words):
        prepare(str(class_folders(tmp_path / "p")), str(tmp_path / "s"), PrepareOptions(**options))


def test_a_limit_draws_the_same_images_for_the_same_seed(tmp_path):
    folder = class_folders(tmp_path / "p", each=20)
    stores = [
        prepare(str(folder), str(tmp_path / f"s{i}"), PrepareOptions(size=8, limit=10, seed=seed))
        for i, seed in enumerate([1, 1, 2])
    ]
    ids = [store.ids.to_pylist() for store in stores]
    assert len(ids[0]) == 10
    assert ids[0] == ids[1] != ids[2]
    assert ids[0] == sorted(ids[0])
    assert [name.startswith("dog") for name in ids[0]] == stores[0].ground_truth().astype(bool).tolist()


def test_progress_counts_up_to_all_images(tmp_path, bad_folder):
    shown = io.StringIO()
    prepare(str(bad_folder), str(tmp_path / "s"), PrepareOptions(size=8), Progress(shown))
    assert re.search(r"prepare +4/4 .* rejected 2$", shown.getvalue().strip())


def test_the_same_call_on_a_finished_store_does_nothing_and_another_is_refused(tmp_path):
    folder = class_folders(tmp_path / "p")
    prepare(str(folder), str(tmp_path / "s"), PrepareOptions(size=8))
    before = (tmp_path / "s" / "store.json").stat().st_mtime_ns
    prepare(str(folder), str(tmp_path / "s"), PrepareOptions(size=8))
    assert (tmp_path / "s" / "store.json").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="already holds"):
        prepare(str(folder), str(tmp_path / "s"), PrepareOptions(size=9))


@pytest.mark.parametrize("suffix", ["bmp", "ppm", "png", "parquet"])
def test_edited_images_of_the_same_size_do_not_count_as_prepared(tmp_path, suffix):
    images = [picture(row, (8, 8)) for row in range(3)]
    place = tmp_path / "p.parquet" if suffix == "parquet" else tmp_path / "p"

    def write():
        if suffix == "parquet":
            rows = [np.asarray(image).tobytes() for image in images]
            bitmaps = [b"P6 8 8 255\n" + row for row in rows]
            pq.write_table(pa.table({"image": pa.array(bitmaps, pa.binary())}), place)
        else:
            for row, image in enumerate(images):
                save(place / f"{row}.{suffix}", image)

    write()
    first = prepare(str(place), str(tmp_path / "s"))
    prepare(str(place), str(tmp_path / "s"))  # nothing has changed
    images[1] = images[1].transpose(0)
    write()
    with pytest.raises(InputError, match=r"files that have changed since; remove it or choose another --out"):
        prepare(str(place), str(tmp_path / "s"))
    again = prepare(str(place), str(tmp_path / "t"))
    assert again.fingerprint != first.fingerprint


def test_another_spelling_of_the_same_folder_is_the_same_call(tmp_path, monkeypatch):
    class_folders(tmp_path / "p")
    monkeypatch.chdir(tmp_path)
    prepare("p", "s", PrepareOptions(size=8))
    before = (tmp_path / "s" / "store.json").stat().st_mtime_ns
    for spelling in ("p/", "./p", str(tmp_path / "p")):
        prepare(spelling, "s", PrepareOptions(size=8))
    assert (tmp_path / "s" / "store.json").stat().st_mtime_ns == before


def test_work_of_another_recipe_is_not_mixed_in(tmp_path, bad_folder):
    with pytest.raises(InputError):
        prepare(str(bad_folder), str(tmp_path / "s"), PrepareOptions(size=8, max_rejected=0))
    store = prepare(str(bad_folder), str(tmp_path / "s"), PrepareOptions(size=9))
    assert store.image_shape == (9, 9, 3)


def test_killed_and_run_again_it_gives_the_same_bytes_and_keeps_whole_shards(tmp_path):
    folder = class_folders(tmp_path / "p", each=700, suffix="png", size=(48, 48))
    code = """
import os, signal, sys
from ray_adaplr.data import ingest
from ray_adaplr.data.options import PrepareOptions

def until_the_second_shard(*args):
    for shard in run_tasks(*args):
        yield shard
        if shard["number"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)

run_tasks, ingest.run_tasks = ingest.run_tasks, until_the_second_shard
ingest.prepare(sys.argv[1], sys.argv[2], PrepareOptions(size=40, workers=1))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    prepare(str(folder), str(tmp_path / "whole"), PrepareOptions(size=40))
    run = subprocess.run([sys.executable, "-c", code, str(folder), str(tmp_path / "killed")], env=env, check=False)
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "store.json").exists()
    first = tmp_path / "killed" / "images-00000.arrow"
    written = first.stat().st_mtime_ns
    prepare(str(folder), str(tmp_path / "killed"), PrepareOptions(size=40))
    assert first.stat().st_mtime_ns == written
    assert content_of(tmp_path / "killed") == content_of(tmp_path / "whole")
    assert len(json.loads((tmp_path / "whole" / "store.json").read_text())["shards"]) == 6
    assert not (tmp_path / "killed" / ".partial").exists()


def test_killed_after_its_manifest_and_run_again_it_leaves_no_notes_behind(tmp_path):
    folder = class_folders(tmp_path / "p", each=3, suffix="png", size=(9, 9))
    prepare(str(folder), str(tmp_path / "store"), PrepareOptions(size=9))
    before = content_of(tmp_path / "store")
    notes = tmp_path / "store" / ".partial"
    notes.mkdir()
    (notes / "00000.json").write_text("{}")
    prepare(str(folder), str(tmp_path / "store"), PrepareOptions(size=9))
    assert not notes.exists()
    assert content_of(tmp_path / "store") == before


def test_two_at_once_in_one_folder_do_not_harm_each_other(tmp_path):
    folder = class_folders(tmp_path / "p", each=700, suffix="png", size=(48, 48))
    prepare(str(folder), str(tmp_path / "alone"), PrepareOptions(size=40))
    command = [sys.executable, "-m", "ray_adaplr", "prepare", str(folder), "--size", "40", "--out", str(tmp_path / "s")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, env=env, text=True) for _ in range(2)]
    ends = [(process.communicate(timeout=300)[1], process.returncode) for process in both]
    assert {code for _, code in ends} <= {0, 2}
    assert 0 in {code for _, code in ends}
    assert all("is in use by a live run" in said for said, code in ends if code)
    assert content_of(tmp_path / "s") == content_of(tmp_path / "alone")


def test_a_folder_that_another_holds_is_refused_and_stays_as_it_is(tmp_path, capsys):
    folder = class_folders(tmp_path / "p", suffix="png", size=(9, 9))
    with hold(Folder(tmp_path / "s")):
        assert main(["prepare", str(folder), "--out", str(tmp_path / "s")]) == 2
        assert content_of(tmp_path / "s") == {}
    assert "is in use by a live run" in capsys.readouterr().err
    assert main(["prepare", str(folder), "--out", str(tmp_path / "s")]) == 0


@pytest.mark.ray
def test_shards_made_by_ray_tasks_have_the_same_bytes(tmp_path, ray_cluster):
    folder = class_folders(tmp_path / "p", each=200, suffix="png")
    prepare(str(folder), str(tmp_path / "threads"), PrepareOptions(size=8))
    prepare(str(folder), str(tmp_path / "ray"), PrepareOptions(size=8, on_ray=True))
    assert content_of(tmp_path / "threads") == content_of(tmp_path / "ray")


@pytest.mark.ray
def test_the_command_on_ray_takes_the_ray_that_a_run_would_take_and_all_its_cores(tmp_path, ray_cluster, monkeypatch):
    import ray

    from ray_adaplr.data import ingest
    from ray_adaplr.engine import placement

    asked, under_way = [], []
    connect, run_tasks = placement.connect, ingest.run_tasks
    monkeypatch.setattr(placement, "connect", lambda scaling: asked.append(scaling.address) or connect(scaling))
    monkeypatch.setattr(ingest, "run_tasks", lambda *work: under_way.append(work[2]) or run_tasks(*work))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 3.0})
    folder = class_folders(tmp_path / "p", each=300, suffix="png", size=(64, 64))
    assert main(["prepare", str(folder), "--on-ray", "--out", str(tmp_path / "ray")]) == 0
    assert (asked, under_way) == ([None], [3])


@pytest.mark.skipif(not DATA, reason="ADAPLR_DATA does not name the folder of real data")
def test_the_sketches_of_pacs_make_a_store_of_3929_images_in_7_classes(tmp_path):
    store = prepare(str(Path(DATA) / "PACS" / "sketch"), str(tmp_path / "sketch"))
    assert len(store) == 3929
    assert store.image_shape == (128, 128, 3)
    assert store.classes == ["dog", "elephant", "giraffe", "guitar", "horse", "house", "person"]
    assert np.bincount(store.ground_truth()).tolist() == [772, 740, 753, 608, 816, 80, 160]
    assert store.domains == ["sketch"]


@pytest.mark.parametrize("kind", ["files", "parquet"])
def test_a_few_colour_images_among_many_grey_ones_keep_their_colours(tmp_path, kind):
    for row in range(200):
        save(tmp_path / "p" / f"{row:03d}.png", picture(row, (8, 8), "RGB" if row in (5, 10) else "L"))
    what = tmp_path / "p"
    if kind == "parquet":
        what = tmp_path / "p.parquet"
        images = [file.read_bytes() for file in sorted((tmp_path / "p").iterdir())]
        pq.write_table(pa.table({"image": images}), what)
    store = prepare(str(what), str(tmp_path / "s"))
    assert store.image_shape == (8, 8, 3)
    np.testing.assert_array_equal(store.read(np.array([5]))[0], np.asarray(picture(5, (8, 8))))
