"""First labels: of clean images or a vote over views, and a warm start that is dropped when it goes astray."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.centroids import Outlook, Voter, whitened
from ray_adaplr.core.feed import DeviceCache
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.stages.first_labels import Glance, Inference, Warmed
from ray_adaplr.stages.infer import Inferred, infer
from ray_adaplr.stages.views import features_and_logits
from ray_adaplr.stages.warm_start import kept_too_few, surest_kept

LOCAL = LocalEngine(ScalingConfig(engine="local"))


def inferred(model: Classifier, store: ImageStore, shares: torch.Tensor | None = None, **settings: object) -> Inferred:
    plan = Inference(store.paths, Config(**settings), "cpu", shares=shares)  # type: ignore[arg-type]
    return infer([model], plan, LOCAL)


def test_surest_kept_looks_at_the_surest_labels_only() -> None:
    confidence = torch.linspace(0.99, 0.51, 1000)
    before = torch.stack([confidence, 1 - confidence], 1)
    after = before.flip(1)
    after[0] = before[0]
    assert surest_kept(before, after).tolist() == [True] + [False] * 99  # a tenth
    assert [len(surest_kept(before[:n], after[:n])) for n in (300, 150, 30, 2)] == [60, 60, 12, 1]


def test_the_fewer_labels_are_looked_at_the_less_they_prove() -> None:
    before = torch.eye(2).repeat(2000, 1)
    after = before.clone()
    after[::10] = before[::10].flip(1)  # a tenth of all labels changes
    few, many = surest_kept(before[:200], after[:200]), surest_kept(before, after)
    assert few.float().mean() == many.float().mean() == 0.9
    assert [kept_too_few(kept, 0.93) for kept in (few, many)] == [False, True]
    assert not kept_too_few(torch.tensor([True, True, False]), 0.93)  # of 30 images
    assert kept_too_few(torch.tensor([True] * 11 + [False] * 4), 0.93)  # of 150
    assert [kept_too_few(torch.ones(5) > 0, trust) for trust in (0.0, 0.93, 1.0)] == [False] * 3
    assert kept_too_few(torch.tensor([True, False]), 1.0)


def test_a_warm_start_that_forgets_the_surest_labels_is_dropped_with_a_warning(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    store = digit_stores["optdigits"]
    trusted = inferred(source_model, store, warm_start_epochs=1, warm_start_trust=0.0)
    # One epoch at a rate that tears the network apart.
    for start in ("im", "centroids"):  # the second takes the target's statistics before it starts
        dropped = inferred(source_model, store, warm_start=start, warm_start_epochs=1, lr=1.0)
        assert "The warm start was dropped" in dropped.warnings[0]
        if start == "centroids":
            assert "the source model goes on unchanged" in dropped.warnings[0]
        else:
            same = (dropped.start_labels == dropped.labels).all()
            assert same or "took over the target's BatchNorm statistics" in dropped.warnings[0]
    assert not trusted.warnings


def test_in_place_of_a_dropped_warm_start_by_vote_the_source_model_goes_on_as_it_came(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    torn = Config(warm_start="centroids", enlarge=(1.5, 1.0), warm_start_epochs=1, lr=1.0)
    plan = Inference(digit_stores["optdigits"].paths, torn, "cpu")
    found = infer([source_model], plan, LOCAL)
    assert "was dropped" in found.warnings[0]
    assert found.as_it_came
    came = source_model.state_dict()
    assert all(torch.equal(value, came[name]) for name, value in found.models[0].state_dict().items())


def test_a_warm_start_is_heard_again_where_the_targets_statistics_mend_a_poor_source(
    source_model: Classifier, digit_stores: dict[str, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, fitted = digit_stores["optdigits"], copy.deepcopy(source_model)
    truth = torch.from_numpy(np.array(store.ground_truth()))
    features = whitened(features_and_logits(source_model, store, "cpu")[0], 10)
    guess = torch.randint(10, truth.shape, generator=torch.Generator().manual_seed(0))
    says = {"right": truth, "half": torch.where(torch.arange(len(truth)) % 2 == 0, truth, guess), "wrong": guess}

    def heard(as_it_came: str, with_statistics: str) -> list[bool]:
        def look(models: list[Classifier], *_: object) -> tuple[Tensor, list[Voter]]:
            labels = says[with_statistics if models[0] is fitted else as_it_came]
            return F.one_hot(labels, 10).float(), [Voter([features])]

        monkeypatch.setattr("ray_adaplr.stages.first_labels.first_look", look)
        plan = Inference(store.paths, Config(warm_start="centroids"), "cpu")
        seen = Glance(torch.empty(0), [fitted], False, Outlook(), [], None)
        found = plan._unwarmed(source_model, seen, store, [store], "cpu")
        return [each.model is fitted for each, _ in found]

    assert heard("wrong", "half") == heard("half", "right") == [False, True]
    assert heard("right", "right") == heard("right", "wrong") == [False]


def test_after_a_dropped_warm_start_centroids_have_less_to_say(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    plan = Inference(digit_stores["optdigits"].paths, Config(warm_start="centroids"), "cpu")
    seen = plan.look([source_model], [])
    silent = replace(seen, outlook=replace(seen.outlook, say=0.0))
    cases = ((silent, False), (seen, True), (seen, False))
    votes = (plan.label(known, [Warmed(source_model, as_it_came=came)]).start_probs for known, came in cases)
    alone, less, usual = (np.asarray(vote) for vote in votes)
    assert 0 < np.abs(less - alone).sum() < np.abs(usual - alone).sum()


def test_a_warm_start_by_vote_is_judged_by_the_source_model_and_not_by_the_target_s_batchnorm_statistics(
    source_model: Classifier, digit_stores: dict[str, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ruined(model: Classifier, *_: object) -> Classifier:
        wrong = copy.deepcopy(model)
        wrong.reset_head(1)
        return wrong

    monkeypatch.setattr("ray_adaplr.stages.first_labels.with_target_statistics", ruined)
    monkeypatch.setattr("ray_adaplr.stages.first_labels.agreement_of_view", lambda *_: 1.0)
    plan = Inference(
        digit_stores["optdigits"].paths, Config(warm_start="centroids", enlarge=(1.5, 1.0), warm_start_epochs=1), "cpu"
    )
    found = infer([source_model], plan, LOCAL)
    assert not found.warnings


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"prior": "uniform", "warm_start": "off"}, True),
        ({"prior": "inferred"}, True),
        ({"prior": "inferred", "warm_start": "off"}, True),  # diversity pulls
        ({"prior": "inferred", "warm_start": "off", "diversity": 0.0}, False),
        ({"prior_strength": 0.0, "warm_start": "off", "diversity": 0.0}, False),
        ({"shares": torch.tensor([0.97, 0.03]), "diversity": 0.0}, False),  # expected to be rare
        ({"shares": torch.tensor([0.6, 0.4]), "diversity": 0.0}, True),
        ({"shares": torch.tensor([0.97, 0.03])}, True),
    ],
    ids=str,
)
def test_a_rare_class_is_warned_of_wherever_something_pulls_towards_equal_classes(
    settings: dict[str, Any], warned: bool, digit_stores: dict[str, ImageStore]
) -> None:
    model = build(ModelSpec(num_classes=2, channels=1, width=4, image_size=(16, 16)))
    with torch.no_grad():
        model.network.get_submodule(model.head_name).bias.copy_(torch.tensor([9.0, 0.0]))  # the second class is rare
    found = inferred(model, digit_stores["optdigits"], warm_start_epochs=1, **settings)
    assert any("use --preset uneven" in warning for warning in found.warnings) == warned


@pytest.fixture(scope="module")
def two_domains(digit_stores: dict[str, ImageStore], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two stores, of dark and of bright digits."""
    images, folder = digit_stores["optdigits"].read(np.arange(150)), tmp_path_factory.mktemp("domains")
    for name, seen in (("dark", images), ("bright", 255 - images)):
        write_store(folder / name, [([f"{i}" for i in range(150)], seen)], classes=[], domain=name)
    return str(folder / "dark"), str(folder / "bright")


@pytest.mark.parametrize(("kind", "sources", "targets"), [("im", 2, 1), ("centroids", 2, 1), ("centroids", 1, 2)])
def test_warm_starts_that_were_cut_off_go_on_to_the_same_bits(
    kind: str, sources: int, targets: int, source_model: Classifier, two_domains: tuple[str, str], tmp_path: Path
) -> None:
    models, epochs = [source_model] * sources, 3
    config = Config(warm_start=kind, warm_start_epochs=epochs)  # type: ignore[arg-type]
    plan = Inference(two_domains[:targets], config, "cpu")
    straight: list[int] = []
    expected = infer(models, plan, LOCAL, on_epoch=straight.append)
    assert straight == [1, 2, 3, 4, 5, 6]

    def cut_off(done: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    plan = replace(plan, checkpoints=str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        infer(models, plan, LOCAL, on_epoch=cut_off)
    rest: list[int] = []
    found = infer(models, plan, LOCAL, on_epoch=rest.append)
    assert rest == [6]  # the second start's last epoch; the first has none left to train, and counts as done
    assert np.array_equal(found.start_labels, expected.start_labels)
    for ours, theirs in zip(found.models, expected.models):
        assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())


def test_each_of_several_targets_is_labelled_as_if_it_were_alone(
    source_model: Classifier, two_domains: tuple[str, str]
) -> None:
    config = Config(warm_start="centroids", warm_start_epochs=2, prior="auto", enlarge=(1.0,), on_no_shift="adapt")
    alone = [infer([source_model], Inference((path,), config, "cpu"), LOCAL) for path in two_domains]
    epochs: list[int] = []
    found = infer([source_model], Inference(two_domains, config, "cpu"), LOCAL, on_epoch=epochs.append)
    assert epochs == [1, 2, 3, 4]
    for name in ("labels", "confidence", "start_labels", "start_probs"):
        assert np.array_equal(getattr(found, name), np.concatenate([getattr(part, name) for part in alone]))
    assert found.remarks[0] == "Each target was labelled by itself."
    said = [f"{name}: {remark}" for name, part in zip(("dark", "bright"), alone) for remark in part.remarks]
    assert found.remarks[1:] == said
    [model] = found.models
    for name, value in model.state_dict().items():
        theirs = [part.models[0].state_dict()[name].float() for part in alone]
        assert torch.equal(value, torch.stack(theirs).mean(0).to(value.dtype))


def test_class_shares_of_several_targets_are_those_of_all_their_images() -> None:
    spec = ModelSpec(num_classes=2, channels=1, width=4, image_size=(16, 16))
    shares = np.array([0.9, 0.1], np.float32)
    few, many = (
        Inferred(np.zeros(n), np.zeros(n), np.zeros(n), [build(spec)], [], start_probs=np.full((n, 2), 0.5), shares=own)
        for n, own in ((10, shares), (30, None))
    )
    both = Inferred.together([few, many], ["few", "many"])
    assert both.shares is not None
    assert both.shares.tolist() == pytest.approx([0.6, 0.4])
    assert Inferred.together([many, many], ["many", "more"]).shares is None


def test_targets_stay_together_where_one_is_small_or_nothing_is_learned_from_each(two_domains: tuple[str, str]) -> None:
    def parts(num_classes: int = 10, warm_start: str = "centroids", **more: Any) -> int:
        plan = Inference(two_domains, Config(warm_start=warm_start), "cpu", **more)  # type: ignore[arg-type]
        return len(plan.by_target(num_classes))

    assert parts() == parts(50) == 2
    assert parts(51) == 1  # 150 images each
    assert parts(warm_start="im") == parts(warm_start="off") == 1
    assert parts(shares=torch.ones(10)) == 1
    assert parts(guest_paths=two_domains) == 2
    assert parts(guest_paths=two_domains[:1]) == 1  # one store of all images, in a guest's size


def test_targets_that_stay_together_are_said_to(source_model: Classifier, two_domains: tuple[str, str]) -> None:
    config = Config(warm_start="centroids", warm_start_epochs=1, enlarge=(1.0,))
    together = infer([source_model], Inference(two_domains, config, "cpu", guest_paths=two_domains[:1]), LOCAL)
    assert any("labelled as one: alone, each needs 30 images" in said for said in together.remarks)
    apart = infer([source_model], Inference(two_domains, config, "cpu"), LOCAL)
    assert not any("labelled as one" in said for said in apart.remarks)


def test_images_on_the_device_change_nothing(source_model: Classifier, digit_stores: dict[str, ImageStore]) -> None:
    plan = Inference(digit_stores["optdigits"].paths, Config(warm_start_epochs=1), "cpu")
    read = infer([source_model], plan, LOCAL)
    cached = infer([source_model], replace(plan, cache=DeviceCache("on")), LOCAL)
    assert np.array_equal(read.start_labels, cached.start_labels)
    ours, theirs = (found.models[0].state_dict() for found in (read, cached))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
