"""Guests: who may come, who is not used, and what their vote does."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import LOCAL
from torch import Tensor, nn

from ray_adaplr import AdaPLR, Config
from ray_adaplr.cli.main import main
from ray_adaplr.core.centroids import Voter, whitened
from ray_adaplr.core.feed import Images
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.core.predict import predict_logits, reestimate_batchnorm
from ray_adaplr.core.shift import distances
from ray_adaplr.data.open import as_store
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import load_state, save_state
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.sources import open_guest
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.first_labels import Inference
from ray_adaplr.stages.guests import features_of, judge, name_of, parts_of, why_not_asked
from ray_adaplr.stages.infer import infer
from ray_adaplr.stages.views import features_and_logits
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import fingerprint, save_model
from ray_adaplr.storage.run import Run

pytestmark = pytest.mark.usefixtures("unrendered")
QUICK = Config(epochs=2, warm_start_epochs=2, distill_epochs=1, warmup=0)


class StopsInTheWarmStart(Progress):
    """Ends a run after the first epoch of its first stage."""

    def step(self, done: int, **figures: str) -> None:
        raise KeyboardInterrupt


class Backbone(nn.Module):
    """A network without a head, as timm's `num_classes=0` gives one: the features of a digit CNN."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.features = network.features

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images.mean(1, keepdim=True) * 0.225 + 0.45)


def voter(model: Classifier, store: ImageStore) -> Voter:
    """A model that votes with its own features."""
    return Voter([whitened(features_and_logits(model, store, "cpu")[0], 10)])


def knowing(model: Classifier, images: Images, count: int) -> Classifier:
    """A model whose BatchNorm layers remember these images."""
    reestimate_batchnorm(guest := copy.deepcopy(model), images, np.arange(count))
    return guest


def judged(guest: Classifier, store: ImageStore, probs: Tensor, own: Voter) -> tuple[list[Voter], list[str]]:
    """What becomes of a guest that has looked at all images."""
    return judge([name_of(guest)], [features_of(guest, store, np.arange(len(store)), "cpu")], probs, own, store)


def test_a_guest_votes_and_the_run_says_so(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    store = digit_stores["optdigits"]
    fit = AdaPLR(QUICK, LOCAL, verbose=False).fit
    save_model(Folder(str(tmp_path / "guest")), knowing(source_model, store.read, len(store)))
    result = fit(copy.deepcopy(source_model), store.paths[0], tmp_path / "run", guest=tmp_path / "guest")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert "votes on the labels" in summary["remarks"][0]
    assert "The vote changed" in summary["remarks"][1]
    assert "votes on the labels" in (tmp_path / "run/report.html").read_text()
    assert summary["refined"] > summary["inferred"]
    inferred = result.run.read_inferred([source_model])
    assert inferred.start_probs is not None
    assert inferred.start_probs.shape == (len(store), 10)
    with pytest.raises(InputError, match="was started with guest; name that again"):
        fit(copy.deepcopy(source_model), store.paths[0], tmp_path / "run")


def test_a_guest_that_sees_nothing_is_sent_away_and_changes_nothing(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    store = digit_stores["optdigits"]
    torch.manual_seed(0)
    blind = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    probs = torch.eye(10)[torch.from_numpy(np.array(store.ground_truth()))]
    own = voter(source_model, store)
    staying, [remark] = judged(open_guest(blind), store, probs, own)
    assert not staying
    assert "is not used: its features tell too little of the classes" in remark
    nn.init.constant_(blind[0].bias, float("nan"))
    told = "is not used: its features of 300 images are not finite numbers"
    assert told in judged(open_guest(blind), store, probs, own)[1][0]
    for warm_start in ("off", "im"):
        plan = Inference(store.paths, Config(warm_start=warm_start, warm_start_epochs=1), "cpu")  # type: ignore[arg-type]
        alone = infer([source_model], plan, LocalEngine(LOCAL))
        visited = infer([source_model], plan, LocalEngine(LOCAL), [open_guest(blind)])
        assert np.array_equal(alone.start_labels, visited.start_labels)
        weights = [inferred.models[0].state_dict() for inferred in (alone, visited)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_guest_to_which_the_images_are_strange_is_not_asked_and_changes_nothing(
    source_model: Classifier, digit_stores: dict[str, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plan = digit_stores["optdigits"], Inference(digit_stores["optdigits"].paths, QUICK, "cpu")
    knows = knowing(source_model, store.read, len(store))
    knows_digits_of_others = knowing(source_model, digit_stores["mnist"].read, 1500)
    asked = plan.look([source_model], [knows_digits_of_others, knows])
    assert asked.asked == [1]
    [why] = asked.remarks
    assert why.startswith("The guest digit_cnn is not used: it does not know such images.")
    monkeypatch.setattr("ray_adaplr.stages.first_labels.features_of", None)  # it is not even shown the images
    visited = infer([source_model], plan, LocalEngine(LOCAL), [knows_digits_of_others])
    alone = infer([source_model], plan, LocalEngine(LOCAL))
    assert visited.remarks == [why]
    assert np.array_equal(alone.start_labels, visited.start_labels)


def test_images_of_one_fixed_camera_are_not_strange_to_a_guest_only_because_they_are_alike(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    mnist, noise = digit_stores["mnist"], np.random.default_rng(0)
    guest = knowing(source_model, mnist.read, 1500)
    alike = (mnist.read(np.zeros(100, int)) + noise.integers(0, 9, (100, *mnist.image_shape))).clip(0, 255)
    store = as_store(alike.astype(np.uint8), tmp_path)
    far, beside_themselves = distances(guest, 100, lambda rows: predict_logits(guest, store.read, rows)) or (0, 0)
    assert far < 0.05 < 3 < beside_themselves
    assert why_not_asked(guest, store, "cpu") == ""
    whole = why_not_asked(guest, digit_stores["optdigits"], "cpu")
    assert "it does not know such images" in whole
    with torch.no_grad():
        next(guest.parameters()).fill_(torch.nan)
    assert why_not_asked(guest, store, "cpu") == ""  # other words are found for that


def test_parts_are_the_same_however_many_seats_there_are_and_hold_each_image_once() -> None:
    for count in (1, 63, 64, 600, 100_000):
        parts = parts_of(count)
        assert np.array_equal(np.concatenate([np.arange(count)[part] for part in parts]), np.arange(count))
        assert len(parts) == min(16, -(-count // 64))


def test_features_are_kept_with_the_run_until_its_first_labels_are_written(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = digit_stores["optdigits"], list[np.ndarray]()
    guest = knowing(source_model, store.read, len(store))

    def counted(guest: Classifier, store: ImageStore, samples: np.ndarray, device: str) -> Tensor:
        seen.append(samples)
        return features_of(guest, store, samples, device)

    monkeypatch.setattr("ray_adaplr.stages.first_labels.features_of", counted)
    plan = RunPlan([source_model], store, str(tmp_path / "run"), QUICK, LOCAL, guests=[guest])
    with pytest.raises(KeyboardInterrupt):
        adapt(plan, progress=StopsInTheWarmStart(quiet=True))
    assert np.array_equal(np.concatenate(seen), np.arange(len(store)))
    assert len(list(tmp_path.glob("run/checkpoints/features-*.pt"))) == len(seen)
    damaged, another, *_ = sorted(tmp_path.glob("run/checkpoints/features-*.pt"))
    damaged.write_bytes(damaged.read_bytes()[:-9])
    kept = load_state(str(another.parent), another.stem)
    assert kept is not None
    save_state(str(another.parent), another.stem, {"features": 2 * kept["features"]})  # as by a guest's earlier code
    seen.clear()
    resumed = adapt(plan)
    whole = [samples for samples in seen if len(samples) > 4]
    assert len(whole) == 2  # these parts alone are looked at again, and four images of each whole one
    assert len(seen) == len(parts_of(len(store))) + 1
    assert not list(tmp_path.glob("run/checkpoints/*"))
    straight = adapt(replace(plan, out=str(tmp_path / "straight")))
    assert resumed.labels.equals(straight.labels)


def test_a_backbone_without_a_head_gives_its_output(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    guest = open_guest(Backbone(copy.deepcopy(source_model).network))
    store = digit_stores["optdigits"]
    probs = torch.eye(10)[torch.from_numpy(np.array(store.ground_truth()))]
    [alike], _ = judged(guest, store, probs, voter(source_model, store))
    assert alike.looks[0].shape == (len(store), 2, 20)
    assert alike.weight >= 1
    again = open_guest(Backbone(copy.deepcopy(source_model).network))
    assert fingerprint(again) == fingerprint(guest)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mobilnet_v2", "did you mean 'mobilenet_v2'"),
        ("digit_cnn", "no published weights"),
        ("mobilenet_v2=nowhere.pth", "there is no model at nowhere.pth"),
    ],
)
def test_a_guest_that_is_not_there_gets_a_sentence(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        open_guest(name)


def test_a_guest_that_is_not_there_is_told_before_images_are_read(source_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no published weights"):
        AdaPLR(QUICK, LOCAL).fit(
            source_folder, [np.zeros((4, 16, 16, 1), np.uint8)], tmp_path / "run", guest="digit_cnn"
        )
    assert not (tmp_path / "run").exists()


def test_guests_look_at_pictures_in_the_size_that_they_know(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    large = digit_stores["optdigits"].read(np.arange(200)).repeat(2, 1).repeat(2, 2)  # 32 pixels; the model has 16
    knows_more = knowing(source_model, large.__getitem__, len(large))
    knows_more.spec = source_model.spec.model_copy(update={"image_size": (32, 32)})
    fit = AdaPLR(QUICK, LOCAL, verbose=False).fit
    result = fit(copy.deepcopy(source_model), large, tmp_path / "run", guest=knows_more)
    assert "the guest looked at images of 32 x 32 pixels" in result.summary["remarks"][0]
    assert result.run.folder.read_json("run.json")["guest_images"][0].startswith(f"{tmp_path}/run/stores/guests-0")
    fit(copy.deepcopy(source_model), large, tmp_path / "run", guest=knows_more)  # the same run, and so already done

    [place] = result.run.folder.read_json("run.json")["target"]
    small = ImageStore.open(place)
    assert small.image_shape == (16, 16, 1)
    alone = fit(copy.deepcopy(source_model), small, tmp_path / "alone", guest=knows_more)
    assert "the guest looked at images of 16 x 16 pixels" in alone.summary["remarks"][0]
    with pytest.raises(InputError, match="other guests"):
        fit(copy.deepcopy(source_model), small, tmp_path / "run", guest=knows_more)
    named = {"guest": knows_more, "guest_images": large}
    both = fit(copy.deepcopy(source_model), small, tmp_path / "named", **named)
    assert both.labels.equals(result.labels)
    knows_more.spec = source_model.spec.model_copy(update={"image_size": (224, 224)})
    fit(copy.deepcopy(source_model), small, tmp_path / "larger", guest=knows_more, guest_images=large)
    [place] = Run(str(tmp_path / "larger")).folder.read_json("run.json")["guest_images"]
    assert ImageStore.open(place).image_shape == (32, 32, 1)  # not enlarged on the disk


def test_images_for_guests_are_the_runs_own(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    store = digit_stores["optdigits"]
    fit = AdaPLR(QUICK, LOCAL, verbose=False).fit
    with pytest.raises(InputError, match=r"must hold the images of .* from the same files$"):
        fit(source_model, store, tmp_path / "run", guest=source_model, guest_images=digit_stores["mnist"])
    several = [store, digit_stores["mnist"]]
    for order in (several[::-1], several[:1]):
        held = ", ".join(path for each in order for path in each.paths)
        with pytest.raises(InputError, match=rf"images: {held} must hold .* the same domain for each target$"):
            fit(source_model, several, tmp_path / "run", guest=source_model, guest_images=order)
    with pytest.raises(InputError, match="there is none; name one with guest"):
        fit(source_model, store, tmp_path / "run", guest_images=store)


def test_a_command_that_resumes_looks_at_the_images_that_were_named_for_guests(
    source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    pixels = digit_stores["optdigits"].read(np.arange(200))
    [small] = as_store(pixels, tmp_path / "small").paths
    [large] = as_store(pixels.repeat(2, 1).repeat(2, 2), tmp_path / "large").paths  # the guest knows 16 pixels
    both = ["--out", str(tmp_path / "run"), "--guest", str(source_folder), "--engine", "local", "--quiet"]
    both += ["--set", "n_e=1", "--set", "epochs=1", "--set", "warmup=0", "--set", "warm_start_epochs=1"]
    assert main(["infer", "--source", str(source_folder), "--target", small, "--guest-images", large, *both]) == 0
    assert main(["refine", *both]) == 0


class Transformer(nn.Module):
    """A block as in a ViT without a head: its last linear layer is as wide as the output, and is not the output."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 16, 16)
        self.fc2 = nn.Linear(8, 8)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).mT
        return (tokens + self.fc2(tokens)).mean(1)


def test_a_guest_is_read_where_its_output_is_and_not_inside_its_last_block() -> None:
    inside, whole = open_guest(Transformer()), open_guest(nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 5)))
    assert isinstance(inside.network, nn.Sequential)
    assert inside.head.in_features == 8
    assert whole.head_name == "1"


def test_a_grey_guest_looks_at_grey_images_and_the_users_own_module_stays_as_it_is(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    store = digit_stores["optdigits"]
    own = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    guest = open_guest(own.train())
    assert (guest.spec.channels, len(guest.spec.mean), len(guest.spec.std)) == (1, 1, 1)
    probs = torch.eye(10)[torch.from_numpy(np.array(store.ground_truth()))]
    beside = voter(source_model, store)
    assert "cannot look" not in judged(guest, store, probs, beside)[1][0]
    assert all(layer.training for layer in own.modules())
    known = Classifier(own, ModelSpec(num_classes=2, channels=1))
    judged(open_guest(known), store, probs, beside)
    assert all(layer.training for layer in known.modules())


def test_a_guest_that_takes_no_pictures_of_its_size_gets_a_sentence() -> None:
    with pytest.raises(InputError, match=r"the guest Sequential does not take images of 3 x 224 x 224: .*; give a"):
        open_guest(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)))


class Odd(nn.Module):
    """A guest that ends in some way of its own; it takes images of 32 pixels alone."""

    def __init__(self, end: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.body, self.end = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 6)), end

    def forward(self, images: Tensor) -> Any:
        return self.end(self.body(images))


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (lambda features: features.reshape(-1), r"the guest Odd gives \[12\] numbers for two images"),
        (lambda features: features[:1], r"gives \[1, 6\] numbers for two images, and a row for each is"),
        (lambda features: features[:, :0], r"gives \[2, 0\] numbers"),
        (lambda features: (features, features), "returns a tuple, not logits"),
    ],
)
def test_a_guest_without_a_row_of_features_for_each_image_gets_a_sentence(
    end: Callable[[Tensor], Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        open_guest(Odd(end))


def test_a_guest_of_one_size_is_found_and_half_or_named_features_are_features(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    ends: list[Callable[[Tensor], Any]] = [lambda x: x, lambda x: x.bfloat16(), lambda x: {"logits": 2 * x}]
    probs = torch.eye(10)[torch.from_numpy(np.array(digit_stores["optdigits"].ground_truth()))]
    beside = voter(source_model, digit_stores["optdigits"])
    for guest in (*map(open_guest, map(Odd, ends)), open_guest(Odd(ends[0]).double())):
        assert guest.spec.image_size == (32, 32)
        assert "The guest Odd" in judged(guest, digit_stores["optdigits"], probs, beside)[1][0]


def test_whatever_a_guest_raises_becomes_a_sentence(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    def boom(features: Tensor) -> Tensor:
        if len(features) > 2:
            raise KeyError("boom")
        return features

    store = digit_stores["optdigits"]
    with pytest.raises(InputError, match="the guest Odd cannot look at the images: 'boom'"):
        judged(open_guest(Odd(boom)), store, torch.full((len(store), 10), 0.1), voter(source_model, store))
    fit = AdaPLR(QUICK, LOCAL, verbose=False).fit
    with pytest.raises(InputError, match="a int is not a guest; give an"):
        fit(source_model, store, tmp_path / "run", guest=5)  # type: ignore[arg-type]
    both = fit(source_model, store, tmp_path / "run", guest=(source_model, source_model), until="infer")  # type: ignore[arg-type]
    assert len([said for said in both.run.read_inferred([source_model]).remarks if said.startswith("The guest ")]) == 2
