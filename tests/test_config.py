"""Settings: every preset is valid, every rule is checked, and a wrong value gets a sentence that helps."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ray_adaplr.cli.options import parse_setting
from ray_adaplr.config import PRESETS, PRIORS, STAGES, Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.engine.training import distill_training, member_training, pretraining
from ray_adaplr.errors import InputError, checked_model
from ray_adaplr.stages.first_labels import Inference
from ray_adaplr.stages.infer import infer
from ray_adaplr.stages.plan import about_photographs, waiting_guards, without_effect
from ray_adaplr.stages.supervised import distill_lesson, distill_start

QUICK = settings(max_examples=60)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_valid_for_the_papers_numbers_of_classes(preset: str) -> None:
    config = Config.load(preset)
    for num_classes in (7, 10, 12, 345):
        assert isinstance(config.resolve(num_classes).n_rl, int)
    member_training(config)
    distill_training(config)
    pretraining(config)


def test_the_defaults_are_the_robust_preset() -> None:
    assert Config.load() == Config.load("robust") == Config()


@pytest.mark.parametrize(
    "preset", [name for name in PRESETS if name not in ("robust", "quick", "photographs", "uneven")]
)
def test_the_papers_presets_switch_every_guard_off(preset: str) -> None:
    config = Config.load(preset)
    assert (config.warmup, config.prior_strength, config.gamma_per_class, config.diversity) == (0, 0, False, 0)
    assert (config.n_e, config.n_a, config.alpha, config.batch_size) == (3, 10, 0.9, 32)
    assert (config.lr, config.lr_head, config.weight_decay, config.schedule) == (1e-5, 1e-4, 5e-4, "constant")
    assert config.crop == (0.08, 1.0)
    assert (config.fresh_head, config.zero_fill, config.logits_from) == (False, True, "train")


def test_the_papers_presets_have_its_epochs() -> None:
    epochs = {name: (Config.load(name).epochs, Config.load(name).distill_epochs) for name in PRESETS}
    assert epochs["digit5"] == (750, 200)
    assert epochs["digit5-multi-source"] == (300, 200)
    assert epochs["pacs"] == (200, 200)
    assert epochs["pacs-multi-source"] == (100, 200)
    assert epochs["visda"] == (150, 25)
    assert epochs["domainnet"] == (40, 100)
    assert epochs["domainnet-hard"] == (100, 100)


@pytest.mark.parametrize(("wrong", "nearest"), [("robst", "robust"), ("pacs-multisource", "pacs-multi-source")])
def test_an_unknown_preset_is_refused_with_the_nearest_name(wrong: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"there is no preset '{wrong}'; did you mean '{nearest}'"):
        Config.load(wrong)


def test_a_preset_near_to_nothing_is_refused_with_all_names() -> None:
    with pytest.raises(InputError, match="known are robust, photographs, uneven, quick, paper"):
        Config.load("zzz")


def test_an_unknown_setting_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no setting 'epoch'; did you mean 'epochs'"):
        Config.load(changes={"epoch": 3})
    file = tmp_path / "mine.toml"
    file.write_text("alhpa = 0.8\n")
    with pytest.raises(InputError, match="there is no setting 'alhpa'; did you mean 'alpha'"):
        Config.load(file=file)


def test_a_file_goes_over_the_preset_and_single_changes_go_over_both(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("epochs = 5\nalpha = 0.8\n")
    config = Config.load("paper", file, {"alpha": 0.7})
    assert (config.epochs, config.alpha, config.lr) == (5, 0.7, 1e-5)


def test_a_file_that_is_missing_or_not_toml_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no config file .*nothing\.toml"):
        Config.load(file=tmp_path / "nothing.toml")
    for content in (b"epochs: 3", b"\xff\xfe"):
        (tmp_path / "odd.toml").write_bytes(content)
        with pytest.raises(InputError, match=r"odd\.toml is not TOML"):
            Config.load(file=tmp_path / "odd.toml")


def test_a_folder_is_no_config_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the config file"):
        Config.load(file=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 0),
        ("alpha", 1.0),
        ("alpha", "high"),
        ("seed", -1),
        ("n_e", 0),
        ("n_rl", 0),
        ("n_rl", 1.5),
        ("n_rl", "all"),
        ("n_a", 0),
        ("epochs", 0),
        ("epochs", 2.5),
        ("loss", "ce"),
        ("residuals", "rl"),
        ("warmup", -1),
        ("prior_strength", 1.5),
        ("diversity", -0.1),
        ("diversity", float("inf")),
        ("batch_size", 1),
        ("lr", 0),
        ("lr", float("nan")),
        ("lr", float("inf")),
        ("weight_decay", -1),
        ("crop", [0, 1]),
        ("crop", [0.9, 0.5]),
        ("crop", [0.5]),
        ("crop", 0.5),
        ("crop", [0.5, 2.0]),
        ("distill_crop", [0.5, 1.1]),
        ("member_weights", [1.0, 1.0, float("nan")]),
        ("rotation", 181),
        ("blur", 2),
        ("hue", 0.6),
        ("distill_on", "some"),
        ("gamma_per_class", "perhaps"),
        ("n_rl", True),
        ("epochs", True),
        ("crop", [True, 1]),
        ("seed", 10**32),
        ("n_a", 10**6),
        ("prior", ""),
    ],
)
def test_a_value_out_of_range_is_refused_with_one_sentence_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(InputError) as refused:
        Config.load(changes={name: value})
    sentence = str(refused.value)
    assert sentence.startswith(f"{name}={value!r}: ")
    assert "\n" not in sentence
    assert len(sentence) > len(name) + 15


def test_weights_must_be_as_many_as_members() -> None:
    assert Config.load(changes={"n_e": 2, "member_weights": [1, 0.5]}).member_weights == (1.0, 0.5)
    with pytest.raises(InputError, match="member_weights has 2 values for n_e=3 members"):
        Config.load(changes={"member_weights": [1, 0.5]})


@pytest.mark.parametrize(("name", "value"), [("zero_fill", True), ("member_weights", (1, 0, 1))])
def test_what_leaves_averaged_probabilities_without_a_sum_of_one_is_refused(name: str, value: Any) -> None:
    assert getattr(Config(**{name: value}), name) == value
    with pytest.raises(InputError, match=f"^{name}=.*; set average=logits"):
        Config(average="probabilities", **{name: value})


def test_probabilities_must_be_written_for_a_target_model_that_learns_from_them() -> None:
    assert Config.load(changes={"distill_on": "soft", "probabilities": True}).distill_on == "soft"
    with pytest.raises(InputError, match="set probabilities=true"):
        Config.load(changes={"distill_on": "soft"})


@pytest.mark.parametrize(("num_classes", "n_rl"), [(10, 3), (7, 2), (12, 3), (345, 114), (4, 1)])
def test_auto_gives_the_members_all_classes_that_can_be_shared_out(num_classes: int, n_rl: int) -> None:
    assert Config().resolve(num_classes).n_rl == n_rl


def test_residual_labels_that_cannot_be_disjoint_are_refused_with_the_largest_that_can() -> None:
    with pytest.raises(InputError) as refused:
        Config(n_e=3, n_rl=4).resolve(10)
    assert str(refused.value) == "n_e=3, n_rl=4 needs 12 residual classes but 10 classes leave 9; use n_rl<=3"


def test_more_members_than_classes_are_refused_with_the_most_that_fit() -> None:
    with pytest.raises(InputError, match=r"n_e=3 needs 3 residual classes but 3 classes leave 2; set .* use n_e<=2"):
        Config(n_e=3, residuals="drl").resolve(3)


@pytest.mark.parametrize(("num_classes", "residuals", "n_rl"), [(2, "srl", 1), (3, "srl", 2), (4, "drl", 1)])
def test_few_classes_keep_three_members_and_share_their_residual_labels(
    num_classes: int, residuals: str, n_rl: int
) -> None:
    resolved = Config().resolve(num_classes)
    assert (resolved.n_e, resolved.residuals, resolved.n_rl) == (3, residuals, n_rl)
    assert ("the same ones" in Config().remark(num_classes)) == (residuals == "srl")


def test_the_same_residual_labels_for_all_need_room_only_once() -> None:
    assert Config(residuals="srl", n_rl=9).resolve(10).n_rl == 9
    assert Config(residuals="srl").resolve(2).n_rl == 1
    with pytest.raises(InputError, match="use n_rl<=9"):
        Config(residuals="srl", n_rl=10).resolve(10)


def test_members_that_learn_the_labels_need_no_residual_classes() -> None:
    assert Config(loss="pl", n_e=3).resolve(2).n_e == 3


def test_one_class_is_nothing_to_adapt_to() -> None:
    with pytest.raises(InputError, match="needs at least 2"):
        Config().resolve(1)


@QUICK
@given(st.integers(2, 400), st.integers(1, 20), st.integers(1, 60), st.sampled_from(["drl", "srl"]))
def test_the_largest_value_that_a_refusal_names_is_accepted(
    num_classes: int, n_e: int, n_rl: int, residuals: str
) -> None:
    config = Config(n_e=n_e, n_rl=n_rl, residuals=residuals)
    needed = n_rl * (n_e if residuals == "drl" else 1)
    if needed <= num_classes - 1:
        assert config.resolve(num_classes).n_rl == n_rl
        return
    with pytest.raises(InputError) as refused:
        config.resolve(num_classes)
    name, largest = str(refused.value).rpartition("use ")[2].split("<=")
    changes = {name: int(largest)} if name == "n_rl" else {name: int(largest), "n_rl": "auto"}
    Config(**{"n_e": n_e, "n_rl": n_rl, "residuals": residuals, **changes}).resolve(num_classes)
    with pytest.raises(InputError):
        Config(**{"n_e": n_e, "residuals": residuals, **changes, name: int(largest) + 1}).resolve(num_classes)


@pytest.mark.parametrize("preset", PRESETS)
def test_settings_survive_toml(preset: str) -> None:
    config = Config.load(preset, changes={"prior": 'a "quoted"\\path é.json', "member_weights": [1, 0.5, 1e-7]})
    assert Config.load_text(config.to_toml()).model_dump() == config.model_dump()
    assert Config.load_text(config.resolve(10).to_toml()).n_rl == 3


def test_a_path_of_any_letters_survives_toml() -> None:
    config = Config(prior="shares \U0001f600.json")
    assert Config.load_text(config.to_toml()) == config


@pytest.mark.parametrize("prior", ["shares.txt", "./shares.txt", "../{here}/shares.txt"])
def test_a_prior_file_is_written_down_so_that_it_is_found_from_any_folder(
    prior: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config.load(changes={"prior": prior.format(here=tmp_path.name)})
    assert config.prior_file == str(tmp_path / "shares.txt")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Config.load_text(config.to_toml()) == config


@pytest.mark.parametrize("prior", [*PRIORS, "s3://bucket/shares.txt"])
def test_a_prior_that_is_no_path_stays_as_it_is(prior: str) -> None:
    assert Config(prior=prior).prior == prior


def test_a_written_config_is_a_config_file(tmp_path: Path) -> None:
    config = Config(alpha=0.8, n_rl=2)
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert Config.load("paper", tmp_path / "config.toml") == config


def test_differences_name_the_setting_with_both_values() -> None:
    assert Config().differences(Config()) == {}
    told = {"seed": "seed: 0 -> 2", "alpha": "alpha: 0.9 -> 0.8"}
    assert Config().differences(Config(alpha=0.8, seed=2)) == told


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("alpha=0.8", ("alpha", 0.8)),
        ("n_rl=auto", ("n_rl", "auto")),
        ("crop=[0.1, 1]", ("crop", [0.1, 1])),
        ("fresh_head=true", ("fresh_head", True)),
        ("prior=shares=2.json", ("prior", "shares=2.json")),
        ("member_weights=null", ("member_weights", None)),
    ],
)
def test_a_setting_on_the_command_line_is_read_as_json_or_a_word(text: str, parsed: tuple[str, Any]) -> None:
    assert parse_setting(text) == parsed


def test_a_setting_without_a_value_is_refused_with_an_example() -> None:
    with pytest.raises(InputError, match="--set alpha: write it as key=value"):
        parse_setting("alpha")


def test_a_config_cannot_be_changed_after_it_was_checked() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().alpha = 2  # type: ignore[misc]


def test_training_settings_take_their_stage_s_values() -> None:
    config = Config(epochs=6, lr=1e-4, distill_epochs=8, distill_lr=2e-4, pretrain_epochs=9, pretrain_augment=False)
    members, target, source = member_training(config), distill_training(config), pretraining(config)
    assert (members.epochs, members.lr, members.augment.crop) == (6, 1e-4, config.crop)
    assert (target.epochs, target.lr, target.augment.crop) == (8, 2e-4, config.distill_crop)
    assert (source.epochs, source.augment) == (9, None)


@pytest.mark.parametrize(
    ("name", "value"), [("gpus_per_member", -1), ("threads", 0), ("max_restarts", -1), ("engine", "spark")]
)
def test_scaling_out_of_range_is_refused_with_the_name(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name}={value!r}: "):
        checked_model(ScalingConfig, {name: value})


@pytest.mark.parametrize(
    ("text", "words"), [("alpah = 0.5", "did you mean"), ("alpha = 5", "alpha"), ("=", "not TOML")]
)
def test_a_runs_settings_that_somebody_spoilt_get_a_sentence(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        Config.load_text(text)


@pytest.mark.parametrize("name", Config.model_fields)
def test_every_setting_has_a_meaning_and_the_stages_that_read_it(name: str) -> None:
    field = Config.model_fields[name]
    assert len(field.description or "") > 5
    assert isinstance(field.json_schema_extra, dict)
    assert set(field.json_schema_extra["stages"]) <= set(STAGES)
    assert any(name in Config.read_by(stage) for stage in STAGES)


@pytest.mark.parametrize("name", ScalingConfig.model_fields)
def test_every_setting_of_where_it_runs_has_a_meaning(name: str) -> None:
    assert len(ScalingConfig.model_fields[name].description or "") > 5


class Noted(Config):
    """Settings that note which of them are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in Config.model_fields:
            READ.add(name)
        return super().__getattribute__(name)


READ: set[str] = set()


def read_by(use: Callable[[Config], object], **changes: Any) -> set[str]:
    config = Noted(**changes)
    READ.clear()
    use(config)
    return set(READ)


def test_no_stage_reads_a_setting_that_does_not_say_so(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    store = digit_stores["optdigits"]

    def infer_all(config: Config) -> object:
        plan = Inference(store.paths, config, "cpu")
        return infer([source_model], plan, LocalEngine(ScalingConfig(engine="local")))

    inferring = read_by(infer_all, warm_start_epochs=1)
    assert "warm_start_trust" in inferring
    assert inferring <= Config.read_by("infer")
    assert read_by(lambda config: pretraining(config)) <= Config.read_by("pretrain")
    table = pa.table({"refined_label": np.zeros(300, np.int32), "confidence": np.ones(300, np.float32)})
    assert read_by(lambda config: distill_lesson(store, table, config)) <= Config.read_by("distill")
    assert read_by(lambda config: distill_training(config)) <= Config.read_by("distill")
    members = {0: source_model}
    assert read_by(lambda config: distill_start(source_model, members, config)) <= Config.read_by("distill")
    assert read_by(lambda config: member_training(config)) <= Config.read_by("refine")


def test_what_nobody_set_follows_the_network_and_what_somebody_set_stays() -> None:
    photographs = Config(lr=0.02).following(photographs=True)
    assert (photographs.flip, photographs.lr, photographs.defaults) == (0.5, 0.02, "photographs")
    assert photographs.following(photographs=True) == photographs
    plain = Config(lr=0.02).following(photographs=False)
    assert plain == Config(lr=0.02, defaults="plain")
    assert plain.following(photographs=True) == plain
    assert Config.load_text(photographs.to_toml()) == photographs
    assert Config.load("photographs") == Config().following(photographs=True)
    assert Config.load("paper").following(photographs=True) == Config.load("paper")


def test_quick_is_never_longer_than_what_it_is_to_shorten() -> None:
    for photographs in (False, True):
        usual, quick = (Config.load(preset).following(photographs) for preset in ("robust", "quick"))
        assert quick.epochs <= usual.epochs
        assert quick.distill_epochs <= usual.distill_epochs
    assert Config.load("quick").following(photographs=False).epochs == 10
    assert Config.load("quick").following(photographs=True) == Config().following(photographs=True)
    assert PRESETS["quick"].keys() <= PRESETS["photographs"].keys(), "what gives way is set by the other"
    said = about_photographs(quick := Config.load("quick"), quick.following(photographs=True))
    assert "epochs 3" in said
    assert "distill_epochs 3" in said


def test_quick_leaves_what_the_user_set_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("epochs = 10\n")  # as quick has them
    for config in (
        Config.load("quick", changes={"epochs": 10}),
        Config.load("quick", tmp_path / "mine.toml"),
        Config.load("quick").model_copy(update={"epochs": 20}),
    ):
        followed = config.following(photographs=True)
        assert (followed.epochs, followed.distill_epochs) == (config.epochs, 3)


@pytest.mark.parametrize(
    ("chosen", "left_out"),
    [
        ({"probabilities": False}, "distill_on"),
        ({"zero_fill": True}, "average"),
        ({"member_weights": (1, 0, 1)}, "average"),
    ],
)
def test_what_follows_gives_way_where_it_would_contradict_what_was_set(chosen: dict[str, Any], left_out: str) -> None:
    config = Config(**chosen).following(photographs=True)
    assert getattr(config, left_out) == getattr(Config(), left_out)
    others = set(PRESETS["photographs"]) - {left_out, *chosen}
    assert all(getattr(config, name) == getattr(Config.load("photographs"), name) for name in others)
    assert config.following(photographs=True) == config == Config.load_text(config.to_toml())


def test_a_run_from_before_settings_followed_the_network_goes_on_as_it_was() -> None:
    assert Config.load_text("lr = 0.001").following(photographs=True).flip == 0


def test_what_is_said_of_photographs_is_what_followed() -> None:
    asked = Config(probabilities=False, lr=0.02)
    said = about_photographs(asked, asked.following(photographs=True))
    assert "enlarge [1.5, 1.0]" in said
    assert "distill_lr 0.0003" in said
    assert not any(name in said for name in ("distill_on", "probabilities True", " lr 0.0001"))
    asked = Config.load("photographs")  # of whatever network
    assert about_photographs(asked, asked.following(photographs=False)) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"prior": "/shares.txt"}, "prior=/shares.txt waits for an alarm"),
        ({"prior": "inferred", "on_harm": "stop"}, "prior=inferred does not act"),
        ({"prior": "inferred", "gamma_per_class": True}, "prior=inferred does not act"),  # an alarm ends it
        ({"prior": "inferred", "prior_strength": 0}, ""),
        ({"prior": "uniform"}, ""),
        ({"prior": "off"}, ""),
        ({"diversity": 2.0}, "diversity=2 does not act"),
    ],
    ids=str,
)
def test_what_is_said_of_guards_that_wait(changes: dict[str, Any], said: str) -> None:
    assert [warning.partition(",")[0] for warning in waiting_guards(Config(**changes))] == ([said] if said else [])


@pytest.mark.parametrize(
    ("changes", "guests", "said"),
    [
        ({}, False, ""),
        ({"epochs": 3}, False, "Refinement changes no label: the first change comes after warmup=3 epochs"),
        ({"enlarge": (2.0,)}, False, "enlarge does not act"),
        ({"enlarge": (2.0,)}, True, ""),
        ({"enlarge": (2.0,), "warm_start": "centroids"}, False, ""),
        ({"keep_source": 0.2}, False, "keep_source does not act"),
        ({"prior": "auto"}, False, "prior=auto expects equal classes here"),
        ({"prior": "auto", "warm_start": "centroids"}, False, ""),
        ({"residuals": "srl", "augmentations": "saug"}, False, "All 3 members see the same"),
        ({"augmentations": "saug"}, False, ""),
        ({"residuals": "srl", "augmentations": "saug", "n_e": 1}, False, ""),
    ],
    ids=str,
)
def test_settings_that_cannot_act_are_named(changes: dict[str, Any], guests: bool, said: str) -> None:
    def told(asked: Config, photographs: bool) -> list[str]:
        plan: Any = SimpleNamespace(config=asked, guests=[1] * guests, sources=[1, 2])
        return without_effect(plan, asked.following(photographs).resolve(10))

    found = told(Config(**changes), photographs=False)
    assert (len(found), "".join(found)[: len(said)]) == (bool(said), said)
    assert not told(Config(warm_start="im"), photographs=True)  # enlarge comes with the preset: nobody asked for it
