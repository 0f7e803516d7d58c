"""The command line as a new user meets it: help, one-sentence errors with exit code 2, and a small whole run."""

import csv
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image

from ray_adaplr.cli.main import check_command, main, make_parser
from ray_adaplr.config import PRESETS, Config, ScalingConfig
from ray_adaplr.data.store import ImageStore


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


COMMANDS = make_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_opens_its_help_with_what_it_is_for_and_an_example_that_can_be_run(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(command, "--help", capsys=capsys)
    assert code == 0
    usage, purpose, example = out.split("\n\n")[:3]
    assert usage.startswith(f"usage: ray-adaplr {command}")
    assert purpose[0].isupper()
    title, line = example.splitlines()
    assert title == "example:"
    assert line.startswith(f"  ray-adaplr {command} ")
    check_command(shlex.split(line)[1:])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_says_what_it_does(command: str) -> None:
    silent = [action.option_strings for action in COMMANDS[command]._actions if not action.help]
    assert [names for names in silent if names] == []


@pytest.mark.parametrize("name", ScalingConfig.model_fields)
def test_flags_come_from_the_model_with_its_words_and_default(name: str) -> None:
    field = ScalingConfig.model_fields[name]
    [action] = [action for action in COMMANDS["adapt"]._actions if action.dest == name]
    assert action.option_strings == ["--" + name.replace("_", "-")]
    assert str(action.help).startswith(str(field.description))
    if field.default is not None and field.default is not False:
        assert f"({field.default})" in str(action.help)


def test_settings_are_listed_with_range_default_stages_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("settings", "--json", capsys=capsys)
    listed = {row["name"]: row for row in json.loads(out)["settings"]}
    assert code == 0
    assert set(listed) == {*Config.model_fields, *ScalingConfig.model_fields}
    assert listed["alpha"]["range"] == "number > 0, < 1"
    assert listed["n_rl"]["range"] == "whole number ≥ 1 or auto"
    assert (listed["crop"]["default"], listed["crop"]["presets"]["paper"]) == ([0.5, 1.0], [0.08, 1.0])
    assert listed["warm_start"]["stages"] == ["infer"]
    code, out, _ = run("settings", "alpha", capsys=capsys)
    assert "robust" in out
    assert "--set alpha=…  (default 0.9)" in out
    assert run("settings", "alhpa", capsys=capsys)[2].endswith("no setting 'alhpa'; did you mean 'alpha'?\n")


@pytest.mark.parametrize("command", ["adapt", "infer", "refine", "distill"])
@pytest.mark.parametrize("name", ["size", "channels", "aspect"])
def test_what_follows_the_model_is_said_to_do_so(command: str, name: str) -> None:
    for each, follows in ((command, True), ("prepare", False)):
        [action] = [action for action in COMMANDS[each]._actions if action.dest == name]
        assert str(action.help).endswith("; default: as the model takes them") is follows
        assert ("(resize)" in str(action.help)) is (name == "aspect" and not follows)


def test_preset_names_stand_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("adapt", "--help", capsys=capsys)
    assert ",".join(PRESETS) in "".join(out.split())


def test_the_forms_of_lists_and_tables_stand_in_the_help_of_prepare(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("prepare", "--help", capsys=capsys)
    assert "a list (lines `path label` or `path`), CSV (columns path and, if known, label" in " ".join(out.split())


def test_bad_input_gets_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    target = digit_stores["optdigits"].paths[0]
    adapt = ["adapt", "--source", source_folder, "--target", target, "--out", tmp_path / "run", "--engine", "local"]
    for arguments, words in [
        ([*adapt, "--set", "alpha=1.5"], "alpha=1.5"),
        ([*adapt, "--set", "alpa=0.5"], "did you mean 'alpha'"),
        ([*adapt, "--preset", "robus"], "did you mean 'robust'"),
        ([*adapt, "--set", "n_rl=4"], "use n_rl<=3"),
        ([*adapt, "--set", "alpha"], "key=value"),
        ([*adapt, "--config", tmp_path / "none.toml"], "no config file"),
        (["adapt", "--source", tmp_path / "no", "--target", target, "--out", tmp_path / "r"], "no model at"),
        (["adapt", "--source", source_folder, "--target", tmp_path / "no", "--out", tmp_path / "r"], "no"),
        (["adapt", "--out", tmp_path / "empty"], "name the --source"),
        (["evaluate", "--model", source_folder, "--data", tmp_path], "no image file"),
        (["nonsense"], "invalid choice"),
        (["demo"], "--out"),
    ]:
        code, out, err = run(*arguments, capsys=capsys)
        assert code == 2, (arguments, out, err)
        assert words in err, (arguments, err)
        assert "Traceback" not in err
        assert len(err.strip().splitlines()) == 1, err


def test_too_few_gpus_end_at_once_with_exit_code_2(
    ray_cluster: None, capsys: pytest.CaptureFixture[str], source_folder: Path, digit_stores: dict, tmp_path: Path
) -> None:
    data = ("--source", source_folder, "--target", digit_stores["optdigits"].paths[0])
    code, _, err = run("adapt", *data, "--out", tmp_path / "run", "--gpus-per-member", 1, capsys=capsys)
    assert code == 2
    assert "--gpus-per-member 0" in err


@pytest.mark.usefixtures("unrendered")
def test_adapt_evaluate_and_predict_work_from_the_command_line(
    capsys: pytest.CaptureFixture[str], source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    target, out = digit_stores["optdigits"].paths[0], tmp_path / "run"
    settings = ["--set=epochs=2", "--set=distill_epochs=1", "--set=distill_on=all"]
    adapt = ["adapt", "--source", source_folder, "--target", target, "--out", out, "--engine", "local", "--quiet"]
    code, printed, _ = run(*adapt, *settings, capsys=capsys)
    assert code == 0
    assert "inferred" in printed
    assert (out / "report.html").exists()
    code, printed, _ = run("evaluate", "--model", out / "target_model", "--data", target, "--json", capsys=capsys)
    assert code == 0
    assert json.loads(printed)["accuracy"] == pytest.approx(json.loads((out / "summary.json").read_text())["target"])
    code, printed, _ = run("evaluate", "--model", out / "target_model", "--data", target, capsys=capsys)
    assert [line.strip() for line in printed.splitlines() if len(line.split()) == 1] == ["domain", "class"]
    file = tmp_path / "predictions.parquet"
    code, printed, _ = run("predict", "--model", out / "target_model", "--data", target, "--out", file, capsys=capsys)
    assert code == 0
    assert "300 predictions" in printed
    Image.new("L", (20, 20)).save(tmp_path / "cat.png")
    one = ["--data", tmp_path / "cat.png", "--out", file, "--probabilities"]
    assert "1 prediction: " in run("predict", "--model", out / "target_model", *one, capsys=capsys)[1]
    [row] = pq.read_table(file).to_pylist()
    assert row["id"] == "cat.png"
    assert row[f"p_{row['class']}"] == pytest.approx(row["confidence"], abs=1e-3)
    folders, file = tmp_path / "photos", tmp_path / "new" / "predictions.parquet"
    for name in ("2024", "2025"):  # folders that are no classes of the model
        (folders / name).mkdir(parents=True)
        Image.new("L", (20, 20)).save(folders / name / "1.png")
    code, printed, _ = run("predict", "--model", out / "target_model", "--data", folders, "--out", file, capsys=capsys)
    assert (code, file.exists()) == (0, True)
    text = tmp_path / "predictions.csv"  # and the run itself stands for its target model
    for _ in range(2):  # a file of ours is replaced
        assert run("predict", "--model", out, "--data", folders, "--out", text, capsys=capsys)[0] == 0
    rows = pq.read_table(file).to_pylist()
    assert [row["id"] for row in csv.DictReader(text.open())] == [row["id"] for row in rows]
    both = ["--data", folders / "2024", "--data", folders / "2025", "--out", file]
    assert "2 predictions" in run("predict", "--model", out, *both, capsys=capsys)[1]
    assert pq.read_table(file)["id"].to_pylist() == ["2024/1.png", "2025/1.png"]


def test_predictions_without_an_ending_that_tells_their_format_are_refused(
    capsys: pytest.CaptureFixture[str], source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    said = ["--model", source_folder, "--data", digit_stores["optdigits"].paths[0]]
    for name in ("predictions", "predictions.txt"):
        code, _, told = run("predict", *said, "--out", tmp_path / name, capsys=capsys)
        assert code == 2
        assert f"{name}: predictions are Parquet or CSV; let the name end in .parquet or .csv" in told
        assert not (tmp_path / name).exists()


def test_a_question_mark_in_a_path_is_no_part_of_a_uri(
    capsys: pytest.CaptureFixture[str], source_folder: Path, tmp_path: Path
) -> None:
    Image.new("L", (20, 20)).save(tmp_path / "cat.png")
    text = tmp_path / "why?" / "predictions.csv"
    said = ["--model", source_folder, "--data", tmp_path / "cat.png", "--out", text]
    assert run("predict", *said, capsys=capsys)[0] == 0
    assert text.read_text().startswith('"id","label"')
    for to, suffix in (("onnx", "onnx"), ("cleanlab", "csv")):
        out = tmp_path / "why?" / f"x.{suffix}"
        _, _, told = run("export", tmp_path / "nowhere", "--to", to, "--out", out, capsys=capsys)
        assert "nowhere" in told  # and not that the name ends wrongly


def test_the_module_runs_as_a_program_and_starts_without_loading_torch() -> None:
    script = "import sys; from ray_adaplr.cli.main import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    script += "assert 'torch' not in sys.modules and 'ray' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "ray-adaplr" in done.stdout
