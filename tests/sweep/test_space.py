"""Search spaces hold feasible cells only, and a search makes the same list of trials every time."""

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.errors import InputError
from ray_adaplr.sweep.options import SweepOptions
from ray_adaplr.sweep.space import SPACES, list_trials, load_space, with_changes
from ray_adaplr.sweep.trial import Sweep

NAMES = sorted(path.stem for path in SPACES.glob("[a-z]*.py"))


def trials_of(space: dict[str, Any], search: Any = "grid", count: int | None = None, classes: int = 10) -> list[dict]:
    return list_trials(space, SweepOptions(search=search, trials=count), Config(), classes)


def test_the_five_spaces_are_shipped() -> None:
    assert NAMES == ["ablation", "alpha", "joint", "n_e", "n_rl"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("classes", [2, 3, 7, 10, 345])
def test_every_cell_of_a_shipped_space_is_feasible(name: str, classes: int) -> None:
    for changes in trials_of(load_space(name, classes), classes=classes):
        config = with_changes(Config(), changes, classes)
        assert int(config.n_rl) * (config.n_e if config.residuals == "drl" else 1) <= classes - 1


def test_the_papers_ablations_are_spaces() -> None:
    assert [t["alpha"] for t in trials_of(load_space("alpha", 10))] == [0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    assert [t["n_rl"] for t in trials_of(load_space("n_rl", 10))] == list(range(1, 10))
    assert [t["n_e"] for t in trials_of(load_space("n_e", 10))] == [1, 2, 3, 4, 5]
    pairs = {(t["residuals"], t["augmentations"]) for t in trials_of(load_space("ablation", 10))}
    assert pairs == {(r, a) for r in ("drl", "srl") for a in ("daug", "saug")}
    assert len(trials_of(load_space("joint", 10))) >= 12


def test_a_random_search_draws_different_cells_the_same_each_time() -> None:
    space = load_space("joint", 10)
    drawn = trials_of(space, "random", 12)
    assert drawn == trials_of(space, "random", 12)
    assert len({str(sorted(t.items())) for t in drawn}) == 12
    assert all(t in trials_of(space) for t in drawn)


def test_a_random_search_takes_continuous_settings() -> None:
    space = {"lr": tune.loguniform(1e-4, 1e-2), "n_e,n_rl": tune.choice([(1, 3), (3, 3)])}
    rates = [t["lr"] for t in trials_of(space, "random", 5)]
    assert len(set(rates)) == 5
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)


def test_a_file_of_class_shares_is_found_from_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    priors = ["uniform", "shares.txt", str(tmp_path / "other.txt")]
    listed = trials_of({"prior": tune.grid_search(priors)})
    assert [trial["prior"] for trial in listed] == ["uniform", str(tmp_path / "shares.txt"), priors[2]]
    sweep = Sweep("", [], 10, [], Config(), ScalingConfig(), "infomax", [])
    monkeypatch.chdir("elsewhere")  # as in a trial's process, which is handed what Optuna made up
    made_up = [sweep.config_of({"alpha,prior": (0.8, prior)}).prior for prior in priors]
    assert made_up == [trial["prior"] for trial in listed]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"n_e": 3, "n_rl": tune.grid_search([3, 4])}, "'n_rl': 4} is not feasible: n_e=3, n_rl=4 needs 12"),
        ({"alpha": tune.grid_search([0.9, 1.5])}, "alpha"),
    ],
)
def test_an_infeasible_cell_is_refused_with_its_settings(space: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match="is not feasible") as refused:
        trials_of(space)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ('{"alpha": 0.5, "alpha,n_e": (0.7, 1)}', "names the setting 'alpha' twice"),
        ('{"distill_lr": 0.1}', "no trial would differ by distill_lr; give it to all of them, --set distill_lr="),
        ('{"defaults": "photographs"}', "no trial would differ by defaults"),
    ],
)
def test_what_a_trial_would_pass_over_is_refused(space: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def space(num_classes):\n    return {space}\n")
    with pytest.raises(InputError, match=words):
        load_space(str(tmp_path / "mine.py"), 10)


def test_more_random_trials_than_cells_are_refused() -> None:
    with pytest.raises(InputError, match="6 different trials only; use --trials 6"):
        trials_of(load_space("alpha", 10), "random", 7)


def test_a_file_of_the_users_own_is_a_space_and_its_mistakes_are_told(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def space(num_classes):\n    return {'warmup': {'grid_search': [0, num_classes]}}\n")
    assert trials_of(load_space(str(file), 10)) == [{"warmup": 0}, {"warmup": 10}]
    file.write_text("def space(num_classes):\n    return {'warm_up': 1}\n")
    with pytest.raises(InputError, match="no setting 'warm_up'"):
        load_space(str(file), 10)
    file.write_text("cells = []\n")
    with pytest.raises(InputError, match="no function space"):
        load_space(str(file), 10)
    with pytest.raises(InputError, match="no search space 'alfa'; use one of ablation, alpha"):
        load_space("alfa", 10)
