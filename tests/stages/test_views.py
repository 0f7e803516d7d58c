"""Looking: enlarged images, who takes them, and when labels are read off them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.centroids import Voter, vote, whitened
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.stages.adapt import Adaptation, RunPlan, adapt
from ray_adaplr.stages.first_labels import Glance, Inference
from ray_adaplr.stages.guests import features_of
from ray_adaplr.stages.infer import infer
from ray_adaplr.stages.looks import outlook_of
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.stages.record import Audience
from ray_adaplr.stages.views import Enlarged, accepts_size, agreement_of_view, clean_logits, features_and_logits
from ray_adaplr.storage.run import Run

SCALING = ScalingConfig(engine="local")
LOCAL = LocalEngine(SCALING)


@pytest.fixture
def store(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


def linear() -> Classifier:
    """A network that takes 16 px and nothing else."""
    plain = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Linear(16, 10))
    return Classifier(plain, ModelSpec(name="own/plain", num_classes=10, channels=1, head="3"))


def test_enlarged_images_are_larger_by_the_factor_and_otherwise_the_same(store: ImageStore) -> None:
    rows = np.arange(5)
    images, larger = store.read(rows), Enlarged(store, 1.5).read(rows)
    assert larger.shape == (5, 24, 24, 1)
    assert larger.dtype == np.uint8
    assert len(Enlarged(store, 1.5)) == len(store)
    np.testing.assert_allclose(larger.mean((1, 2, 3)), images.mean((1, 2, 3)), atol=4)


def test_a_network_of_one_size_takes_no_enlarged_images(source_model: Classifier, store: ImageStore) -> None:
    assert accepts_size(source_model, Enlarged(store, 1.5), "cpu")
    assert not accepts_size(linear(), Enlarged(store, 1.5), "cpu")


def test_ways_of_looking_are_averaged(source_model: Classifier, store: ImageStore) -> None:
    features, logits = features_and_logits(source_model, store, "cpu")
    ways = [features_and_logits(source_model, store, "cpu", (mirrored,)) for mirrored in (False, True)]
    assert features.shape[:2] == (len(store), 2)
    torch.testing.assert_close(logits, (ways[0][1] + ways[1][1]) / 2)
    torch.testing.assert_close(features[:, 1], ways[1][0][:, 0])
    torch.testing.assert_close(ways[0][1], clean_logits(source_model, store, "cpu"))


def test_a_view_foretells_its_own_labels_and_no_others(source_model: Classifier, store: ImageStore) -> None:
    own = features_and_logits(source_model, store, "cpu")[1].softmax(1)
    by_chance = torch.rand(len(store), 10, generator=torch.Generator().manual_seed(1)).softmax(1)
    assert agreement_of_view(source_model, store, own, "cpu") > 0.4
    assert agreement_of_view(source_model, store, by_chance, "cpu") < 0.2


@pytest.mark.parametrize("enlarge", [(1.0,), (1.25, 1.0)])
def test_the_vote_of_the_models_own_view_starts_refinement(
    enlarge: tuple[float, ...], source_model: Classifier, store: ImageStore
) -> None:
    config = Config(warm_start="centroids", warm_start_epochs=3, enlarge=enlarge, warm_start_trust=0.0)
    epochs: list[int] = []
    found = infer([source_model], Inference(store.paths, config, "cpu"), LOCAL, on_epoch=epochs.append)
    assert epochs == [1, 2, 3]
    assert found.start_probs is not None
    assert (found.start_probs.argmax(1) == found.start_labels).all()
    assert "The vote changed" in found.remarks[-1]
    truth = store.ground_truth()
    assert (found.start_labels == truth).mean() > (found.labels == truth).mean()


@pytest.mark.parametrize(("domain", "believed"), [("mnist", True), ("optdigits", False)])
def test_where_a_first_vote_changes_few_labels_the_sources_class_shares_are_believed(
    domain: str, believed: bool, source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    lessons = Config(pretrain_epochs=6)
    known = pretrain(SourcePlan(digit_stores["mnist"], str(tmp_path / "model"), source_model, lessons, SCALING))
    config = Config(warm_start="centroids", warm_start_epochs=1, enlarge=(1.0,), flip=0.0)
    plan = Inference(digit_stores[domain].paths, config.model_copy(update={"prior": "auto"}), "cpu")
    found = infer([known], plan, LOCAL)
    assert (found.shares is not None) == believed
    assert any("its class shares count for" in remark for remark in found.remarks) == believed
    if found.shares is not None:
        inferred = np.bincount(found.labels, minlength=10) / len(found.labels)
        assert found.shares.sum() == pytest.approx(1, abs=1e-5)
        assert np.corrcoef(found.shares, inferred)[0, 1] > 0.5
    assert infer([known], Inference(plan.store_paths, config, "cpu"), LOCAL).shares is None


def test_the_shares_of_a_file_act_in_the_warm_start(
    source_model: Classifier, store: ImageStore, tmp_path: Path
) -> None:
    (tmp_path / "shares.txt").write_text("0.01 " + "0.11 " * 9)
    zeros = []
    for prior in ("uniform", str(tmp_path / "shares.txt")):
        config = Config(warm_start_epochs=4, warm_start_trust=0.0, prior=prior)
        plan = RunPlan([source_model], store, str(tmp_path / f"run-{len(zeros)}"), config, SCALING)
        found = adapt(plan, until="infer").run.read_inferred([source_model])
        zeros.append((found.start_labels == 0).sum())
    assert zeros[1] < zeros[0]


def test_believed_shares_are_kept_with_the_run_and_act_in_refinement_where_the_prior_is_auto(
    source_model: Classifier, store: ImageStore, tmp_path: Path
) -> None:
    shares = np.float32([0.19, *[0.09] * 9])
    plan = Inference(store.paths, Config(warm_start="off"), "cpu")
    found = replace(infer([source_model], plan, LOCAL), shares=shares)
    run = Run(tmp_path)
    run.folder.write_json("run.json", {})
    run.write_inferred(store.ids, found)
    kept = run.read_inferred([source_model]).shares
    assert kept is not None
    assert (kept == shares).all()
    for prior, expected in {"auto": 0.19, "uniform": 0.1}.items():
        config = Config(prior=prior)
        adaptation = Adaptation(RunPlan([source_model], store, str(tmp_path), config), run, Audience(Progress()))
        rules = adaptation._rules(run.read_inferred([source_model]))
        assert rules.prior is not None
        assert rules.prior[0].item() == pytest.approx(expected)


def test_beside_guests_centroids_keep_their_say(source_model: Classifier, store: ImageStore) -> None:
    features, logits = features_and_logits(source_model, store, "cpu")
    probs, own = logits.softmax(1), [Voter([whitened(features, 10)])]
    said = vote(probs, own).argmax(1)
    sure = torch.nn.functional.one_hot(said, 10).float()  # labels that the vote leaves alone
    outlook = outlook_of(sure, probs, own)
    assert outlook.say == 0.0
    plan = Inference(store.paths, Config(warm_start="centroids"), "cpu")
    seen = Glance(sure, [source_model], False, outlook, [], None, beside=(sure, own[0]))
    shown = features_of(source_model, store, np.arange(len(store)), "cpu").numpy()
    visited, alone = (plan.invite(seen, ["guest"], [[each]]) for each in (shown, 0 * shown))
    assert (len(visited.guests), visited.outlook.say) == (1, 0.5)
    assert (len(alone.guests), alone.outlook.say) == (0, 0.0)


def test_images_stay_as_they_are_where_the_model_takes_no_others(store: ImageStore) -> None:
    config = Config(warm_start="centroids", warm_start_epochs=1, enlarge=(1.5,))
    found = infer([linear()], Inference(store.paths, config, "cpu"), LOCAL)
    assert len(found.labels) == len(store)
