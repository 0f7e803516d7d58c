"""What users and attackers hand over as images: each row gets one sentence, and nothing is left behind."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_trees import class_folders, picture, save
from PIL import features

from ray_adaplr.cli.main import main
from ray_adaplr.data.files import list_images
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.open import as_store
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)


def png() -> bytes:
    file = io.BytesIO()
    picture(0, (8, 8)).save(file, "PNG")
    return file.getvalue()


def npz(**arrays: object) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{"images": PIXELS, **arrays})
    return file.getvalue()


def parquet(metadata: object = None, **columns: object) -> bytes:
    file = io.BytesIO()
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata({"huggingface": metadata}) if metadata else table, file)
    return file.getvalue()


def twice() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([pa.array([png()]), pa.array([png()])], names=["image", "image"]), file)
    return file.getvalue()


def in_list(label: str) -> str:
    return f"images/cat/000.png {label}\nimages/dog/000.png 0\n"


BAD = {  # name of a file, its content, words of the sentence
    "text labels beside numbers of images": ("a.npz", npz(labels=["x", "y"]), "one for each"),
    "NaN labels": ("a.npz", npz(labels=[0, 1, np.nan, 1]), "label nan"),
    "labels between numbers": ("a.npz", npz(labels=[0, 1, 0.5, 1]), "label 0.5"),
    "infinite labels": ("a.npz", npz(labels=[0, 1, np.inf, 1]), "label inf"),
    "complex labels": ("a.npz", npz(labels=[0, 1, 2j, 1]), "label 0j"),
    "dates as labels": ("a.npz", npz(labels=np.array(["2020-01-01"] * 4, "M8[D]")), "label"),
    "negative labels": ("a.npz", npz(labels=[0, 1, -7, 1]), "label -7"),
    "an absurd label": ("a.npz", npz(labels=[0, 1, 2_000_000_000, 1]), "2000000000"),
    "a label beyond int64": ("a.npz", npz(labels=np.array([0, 1, 2**64 - 1, 1], np.uint64)), "18446744073709551615"),
    "an empty label": ("a.npz", npz(labels=["a", "b", " ", "a"]), "not a class name"),
    "a label with NUL": ("a.npz", npz(labels=["a", "b", "a\0b", "a"]), "not a class name"),
    "pickled images": ("a.npz", npz(images=np.array([{}, []], object)), "cannot be read as npz"),
    "no images at all": ("a.npz", npz(images=np.zeros((0, 8, 8, 3), np.uint8)), "shape"),
    "images without height": ("a.npz", npz(images=np.zeros((3, 0, 8, 3), np.uint8)), "shape"),
    "images of texts": ("a.npz", npz(images=np.full((2, 8, 8), "x")), "images"),
    "images of seven dimensions": ("a.npz", npz(images=np.zeros((1,) * 7)), "shape"),
    "five channels": ("a.npz", npz(images=np.zeros((2, 8, 8, 5), np.uint8)), "shape"),
    "an npz that is cut": ("a.npz", npz()[:-60], "cannot be read as npz"),
    "an npz that is empty": ("a.npz", b"", "cannot be read as npz"),
    "Parquet with numbers as images": ("a.parquet", parquet(image=[1, 2]), "int64"),
    "Parquet with lists as images": ("a.parquet", parquet(image=[[1, 2]]), "list"),
    "Parquet with foreign structs": ("a.parquet", parquet(image=[{"data": 1}]), "struct"),
    "Parquet with a column twice": ("a.parquet", twice(), "twice"),
    "Parquet with lists as labels": ("a.parquet", parquet(image=[png()], label=[[1]]), "label"),
    "Parquet with dictionaries as labels": ("a.parquet", parquet(image=[png()], label=[{"a": 1}]), "label"),
    "Parquet with an absurd label": ("a.parquet", parquet(image=[png()], label=[2_000_000_000]), "2000000000"),
    "Parquet with a label beyond its names": (
        "a.parquet",
        parquet(json.dumps({"info": {"features": {"label": {"names": ["a"]}}}}), image=[png()], label=[3]),
        "1 class names",
    ),
    "Parquet with one id for two": ("a.parquet", parquet(image=[png(), png()], id=["a", "a"]), "more than once"),
    "Parquet that is cut": ("a.parquet", parquet(image=[png()])[:-9], "cannot be read as Parquet"),
    "Parquet without rows": ("a.parquet", parquet(image=pa.array([], pa.binary())), "no row"),
    "a list with an absurd number": ("l.txt", in_list("2000000000"), "2000000000"),
    "a list with a number beyond int64": ("l.txt", in_list("9" * 30), "9999"),
    "a list with a number of 5000 digits": ("l.txt", in_list("9" * 5000), "label"),
    "a list with a negative number": ("l.txt", in_list("-3"), "-3"),
    "a list with a NUL": ("l.txt", in_list("a\0b"), "not a class name"),
    "a list with labels here and there": ("l.txt", "images/cat/000.png 1\nimages/dog/000.png\n", "lines without"),
    "a list of nothing": ("l.txt", "\n\n", "empty"),
    "a list that is no text": ("l.txt", b"\xff\xfe\x00\x01", "cannot be read as a list"),
    "a list of files elsewhere": ("l.txt", "nowhere/1.png 0\n", "--root"),
    "a list with a NUL in its path": ("l.txt", "images/\0.png 0\n", "--root"),
    "an empty CSV": ("l.csv", "", "empty"),
    "a CSV with its header alone": ("l.csv", "path,label\n", "no rows"),
    "a CSV with rows of other lengths": ("l.csv", "path,label\nimages/cat/000.png,1\nimages/dog/000.png\n", "cells"),
    "a CSV with a column twice": ("l.csv", "path,path\nimages/cat/000.png,x\n", "twice"),
    "a CSV without some labels": ("l.csv", "path,label\nimages/cat/000.png,\nimages/dog/000.png,1\n", "no label for"),
    "a CSV without some paths": ("l.csv", "path,label\n,1\n", "without a path"),
    "a CSV with an open quote": ("l.csv", 'path,label\n"images/cat/000.png,1\n', "cannot be read as CSV"),
    "a .mat that is none": ("a.mat", b"nothing", r"\.mat"),
    "a .bz2 of something else": ("x.bz2", b"nothing", "usps"),
    "an HDF5 file": ("usps.h5", b"\x89HDF", "no known kind"),
    "a file of no kind": ("a.doc", b"", "no known kind"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gets_one_sentence_and_leaves_nothing(tmp_path, capsys, name):
    class_folders(tmp_path / "images", suffix="png", size=(8, 8))
    file, content, words = BAD[name]
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(tmp_path.rglob("*"))
    assert main(["prepare", str(tmp_path / file), "--out", str(tmp_path / "s")]) == 2
    told = capsys.readouterr().err
    assert words.replace("\\", "") in told, told
    assert len(told.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "flags",
    [
        ("--workers", "-1"),
        ("--workers", "0"),
        ("--size", "100000"),
        ("--size", "-3"),
        ("--limit", "0"),
        ("--scale", "nan"),
        ("--scale", "2"),
        ("--seed", "-1"),
        ("--max-rejected", "-0.1"),
        ("--max-rejected", "inf"),
        ("--domain", "a\tb"),
        ("--classes", "/nowhere"),
    ],
    ids=" ".join,
)
def test_an_impossible_option_gets_one_sentence_and_leaves_nothing(tmp_path, capsys, flags):
    folder = class_folders(tmp_path / "images", suffix="png", size=(8, 8))
    assert main(["prepare", str(folder), "--out", str(tmp_path / "s"), *flags]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("names", [("cat", "cat"), ("cat", ""), ("cat", "a\0b"), ("cat", "\t")])
def test_class_names_that_are_none_or_come_twice_are_refused(names):
    with pytest.raises(InputError, match="class"):
        PrepareOptions(classes=names)


def test_a_superscript_is_a_class_name_and_no_number(tmp_path):
    class_folders(tmp_path / "images", suffix="png", size=(8, 8))
    (tmp_path / "l.txt").write_text("images/cat/000.png ²\nimages/dog/000.png ³\n")
    assert prepare(str(tmp_path / "l.txt"), str(tmp_path / "s")).classes == ["²", "³"]


def test_metadata_that_is_not_hugging_faces_is_passed_over(tmp_path):
    for number, metadata in enumerate(("{", "[]", "3", '{"info": []}', '{"info": {"features": {"label": 5}}}')):
        (tmp_path / f"{number}.parquet").write_bytes(parquet(metadata, image=[png(), png()], label=[0, 1]))
        assert prepare(str(tmp_path / f"{number}.parquet"), str(tmp_path / f"s{number}")).classes == ["0", "1"]


def test_every_image_is_taken_once_whatever_leads_to_it(tmp_path):
    folder = class_folders(tmp_path / "in", suffix="png", size=(8, 8))
    outside = save(tmp_path / "out" / "a.png", picture(1, (8, 8))).parent
    (folder / "cat" / "loop").symlink_to(folder)
    (folder / "again").symlink_to(folder / "dog")
    (folder / "dog" / "same.png").symlink_to(folder / "dog" / "000.png")
    (folder / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (folder / "dog" / "self.png").symlink_to(folder / "dog" / "self.png")
    (folder / "fox").symlink_to(outside)
    (outside / "back").symlink_to(folder)
    files, left_out = list_images(folder)
    assert files == [f"{name}/00{i}.png" for name in ("cat", "dog") for i in range(3)] + ["fox/a.png"]
    names = ["again", "cat/loop", "dog/gone.png", "dog/same.png", "dog/self.png", "fox/back"]
    assert [name for name, _ in left_out] == names


def test_pipes_are_passed_by_and_kinds_that_are_not_read_are_counted(tmp_path, capsys):
    folder = class_folders(tmp_path / "in", suffix="png", size=(8, 8))
    os.mkfifo(folder / "cat" / "pipe.png")
    (folder / "cat" / "photo.jxl").write_bytes(b"x")
    (folder / "cat" / "notes.txt").write_text("not an image at all")
    assert main(["prepare", str(folder), "--out", str(tmp_path / "s")]) == 0
    last = capsys.readouterr().out.strip()
    assert last.startswith("6 images of 8x8x3, 2 classes, 2 left out, listed in ")
    assert f"{tmp_path}/s/rejected.csv" in last
    assert "cat/pipe.png,not a regular file" in (tmp_path / "s" / "rejected.csv").read_text()
    (tmp_path / "l.txt").write_text("in/cat/000.png\nin/cat/pipe.png\n")
    assert len(prepare(str(tmp_path / "l.txt"), str(tmp_path / "t"))) == 1
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        prepare(str(tmp_path / "a.npz"), str(tmp_path / "u"))


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow was built without AVIF")
def test_avif_is_read_where_pillow_can(tmp_path):
    save(tmp_path / "p" / "a.avif", picture(0, (8, 8)))
    assert prepare(str(tmp_path / "p"), str(tmp_path / "s")).ids.to_pylist() == ["a.avif"]


def test_postscript_is_not_run_whatever_its_name(tmp_path):
    save(tmp_path / "p" / "a.png", picture(0, (8, 8)))
    (tmp_path / "p" / "b.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n")
    assert prepare(str(tmp_path / "p"), str(tmp_path / "s")).ids.to_pylist() == ["a.png"]


def test_a_store_that_does_not_fit_the_disk_is_refused_before_work(tmp_path, monkeypatch):
    folder = class_folders(tmp_path / "in", suffix="png", size=(8, 8))
    monkeypatch.setattr("ray_adaplr.data.store_writer.free_bytes", lambda _: 5000)
    with pytest.raises(InputError, match=r"needs 0\.1 MB and .* free.*--size"):
        prepare(str(folder), str(tmp_path / "s"), PrepareOptions(size=64))
    assert not (tmp_path / "s").exists()
    assert len(prepare(str(folder), str(tmp_path / "s"))) == 6


@pytest.mark.parametrize("out", ["in", "in/../in", "busy", "file"])
def test_a_place_that_is_not_ours_is_refused_and_left_as_it_is(tmp_path, out):
    folder = class_folders(tmp_path / "in", suffix="png", size=(8, 8))
    (tmp_path / "busy" / ".partial").mkdir(parents=True)
    (tmp_path / "busy" / ".partial" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))}
    with pytest.raises(InputError, match="--out"):
        prepare(str(folder), str(tmp_path / out))
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_path.rglob("*"))} == before


def test_images_in_a_bucket_get_one_sentence():
    with pytest.raises(InputError, match="copy or mount"):
        prepare("s3://bucket/images", str(Path("/nowhere")))


def test_what_is_left_out_of_a_runs_store_is_said_with_the_first_reasons(tmp_path):
    photos = class_folders(tmp_path / "photos", suffix="png", size=(8, 8))
    (photos / "cat" / "broken.png").write_text("no image")
    for name in ("a.jxl", "b.jxl", "c.jxl"):
        (photos / name).touch()
    said = io.StringIO()
    store = as_store(photos, tmp_path / "run", PrepareOptions(size=8), progress=Progress(said))
    words = "4 images are left out: 'cat/broken.png' (not an image of a known format), 'a.jxl' (.jxl is not read here; "
    assert store.left_out_words().startswith(words)
    assert store.left_out_words().endswith("'b.jxl' (.jxl is not read here; convert it), …")
    assert store.left_out_words() + "\n" in said.getvalue()
    (tmp_path / "run/stores/0/rejected.csv").unlink()
    assert ImageStore.open(*store.paths).left_out_words() == "4 images are left out"


def test_nothing_is_said_where_nothing_is_left_out(tmp_path):
    photos = class_folders(tmp_path / "photos", suffix="png", size=(8, 8))
    said = io.StringIO()
    store = as_store(photos, tmp_path / "run", PrepareOptions(size=8), progress=Progress(said))
    assert store.left_out_words() == ""
    assert "left out" not in said.getvalue()


@pytest.mark.parametrize("suffix", ["gif", "png", "tif"])
def test_a_film_is_left_out_and_a_picture_of_the_same_kind_is_not(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / f"photos/still.{suffix}", picture(0, (8, 8)))
    film = {"save_all": True, "append_images": [picture(1, (8, 8)), picture(2, (8, 8))]}
    save(tmp_path / f"photos/film.{suffix}", picture(0, (8, 8)), **film)
    said = io.StringIO()
    store = prepare(str(tmp_path / "photos"), str(tmp_path / "store"), progress=Progress(said))
    assert store.ids.to_pylist() == [f"still.{suffix}"]
    assert (
        f"'film.{suffix}' (it holds 3 pictures; save the one that is meant)" in store.left_out_words() + said.getvalue()
    )
