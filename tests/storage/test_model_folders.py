"""Models on disk come back bit for bit; a damaged, foreign or dangerous file is refused with a sentence."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import load_model, load_start, save_model

CLASSES = ("cat", "dog", "bird", "fish")
SPEC = ModelSpec(num_classes=4, channels=1, width=2, normalize="image", classes=CLASSES, image_size=(8, 8))
SHAPE: dict[str, Any] = {"name": "digit_cnn", "channels": 1, "width": 2}


@pytest.fixture
def model() -> Classifier:
    """A model whose BatchNorm statistics are no longer the initial ones."""
    made = build(SPEC, seed=3)
    made.train()(torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    return made.eval()


@pytest.fixture
def saved(model: Classifier, tmp_path: Path) -> Path:
    save_model(Folder(tmp_path / "model"), model, accuracy=0.9)
    return tmp_path / "model"


def weights_of(model: Classifier) -> dict[str, Tensor]:
    return {name: tensor.contiguous() for name, tensor in model.network.state_dict().items()}


def assert_same(one: Classifier, other: Classifier) -> None:
    mine, theirs = one.network.state_dict(), other.network.state_dict()
    assert list(mine) == list(theirs)
    for name in mine:
        assert mine[name].dtype == theirs[name].dtype
        assert torch.equal(mine[name], theirs[name]), name


class Dangerous:
    """Unpickling this writes a file: the proof that code in it was run."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple:
        return Path.touch, (self.proof,)


def test_a_saved_model_comes_back_bit_for_bit(model: Classifier, saved: Path) -> None:
    loaded = load_model(saved)
    assert loaded.spec == model.spec
    assert loaded.spec.classes == CLASSES
    assert_same(loaded, model)
    images = torch.rand(5, 1, 8, 8)
    assert torch.equal(loaded.eval()(images), model(images))


def test_notes_are_for_people_and_do_not_disturb(saved: Path) -> None:
    assert json.loads((saved / "model.json").read_text())["notes"] == {"accuracy": 0.9}


def test_saving_over_a_model_replaces_it(saved: Path) -> None:
    newer = build(SPEC, seed=4)
    save_model(Folder(saved), newer)
    assert_same(load_model(saved), newer)


def test_a_network_of_the_users_own_class_comes_back_through_a_like_one(tmp_path: Path) -> None:
    def own() -> Classifier:
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
        return Classifier(network, ModelSpec(name="mine", num_classes=4, channels=1, head="1"))

    model, like = own(), own()
    before = like.head.weight.clone()
    save_model(Folder(tmp_path), model)
    assert_same(load_model(tmp_path, like=like), model)
    assert torch.equal(like.head.weight, before)
    with pytest.raises(InputError, match="there is no model 'mine'"):
        load_model(tmp_path)


def test_a_folder_is_not_taken_for_another_architecture_than_its_own(saved: Path) -> None:
    assert load_model(saved, name="digit_cnn").spec.name == "digit_cnn"
    for other in ("resnet50", "package.module:function"):
        with pytest.raises(InputError, match=f"holds a digit_cnn, not a {other}; leave that name out"):
            load_model(saved, name=other)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_weights_are_refused(saved: Path, keep: int) -> None:
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(InputError, match="is not a whole model folder"):
        load_model(saved)


def test_missing_weights_are_refused(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no model\.safetensors; the model was not written to its end"):
        load_model(saved)


@pytest.mark.parametrize(
    "content", ["{", "{}", '{"num_classes": 1}', '{"num_classes": 4, "colour": 1}', "", "[]", "null", "3", '"a"']
)
def test_a_damaged_description_is_refused(saved: Path, content: str) -> None:
    (saved / "model.json").write_text(content)
    with pytest.raises(InputError, match="is not a whole model folder") as refused:
        load_model(saved)
    assert "\n" not in str(refused.value)


def test_an_impossible_value_in_a_description_is_named(saved: Path) -> None:
    text = (saved / "model.json").read_text()
    (saved / "model.json").write_text(text.replace('"num_classes": 4', '"num_classes": 1'))
    with pytest.raises(InputError, match=r"not a whole model folder: num_classes=1: .* greater than or equal to 2"):
        load_model(saved)


def test_a_description_of_a_head_that_is_not_there_is_refused(saved: Path) -> None:
    text = (saved / "model.json").read_text()
    assert '"head": "head"' in text
    (saved / "model.json").write_text(text.replace('"head": "head"', '"head": "tail"'))
    with pytest.raises(InputError, match="no layer 'tail'"):
        load_model(saved)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["head.weight", "features.1.running_var"])
def test_weights_that_are_no_numbers_are_refused(saved: Path, name: str, value: float) -> None:
    weights = load_file(saved / "model.safetensors")
    weights[name].view(-1)[0] = value
    save_file(weights, saved / "model.safetensors")
    with pytest.raises(InputError, match=f"'{name}' holds NaN or infinite values"):
        load_model(saved)


def test_weights_that_lack_some_are_refused_with_an_example(saved: Path) -> None:
    weights = load_file(saved / "model.safetensors")
    del weights["features.0.weight"], weights["head.bias"]
    save_file(weights, saved / "model.safetensors")
    with pytest.raises(InputError, match=r"lacks 2 weights of digit_cnn, e\.g\. 'features\.0\.weight'"):
        load_model(saved)


def test_a_head_of_another_width_is_refused_with_both_numbers(model: Classifier, tmp_path: Path) -> None:
    torch.save(model.network.state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match="has 4 outputs but there are 5 classes; give the class list"):
        load_model(tmp_path / "w.pt", classes=list("abcde"), **SHAPE)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_width_and_channels_of_a_digit_cnn_are_read_off_its_weights(
    model: Classifier, tmp_path: Path, prefix: str
) -> None:
    torch.save({prefix + name: tensor for name, tensor in model.network.state_dict().items()}, tmp_path / "w.pt")
    loaded = load_model(tmp_path / "w.pt", name="digit_cnn")
    assert (loaded.spec.channels, loaded.spec.width, loaded.spec.num_classes) == (1, 2, 4)
    assert_same(loaded, model)


def test_another_width_of_the_body_is_refused_with_both_shapes(model: Classifier, tmp_path: Path) -> None:
    torch.save(model.network.state_dict(), tmp_path / "w.pt")
    with pytest.raises(
        InputError, match=r"'features\.0\.weight' has shape \(2, 1, 3, 3\), digit_cnn wants \(3, 1, 3, 3\)"
    ):
        load_model(tmp_path / "w.pt", **{**SHAPE, "width": 3})


@pytest.mark.parametrize("wrap", ["plain", "module.", "state_dict", "model", "both"])
def test_a_state_dict_is_taken_in_the_usual_wrappings(model: Classifier, tmp_path: Path, wrap: str) -> None:
    state: dict = dict(model.network.state_dict())
    if wrap in ("module.", "both"):
        state = {f"module.{name}": tensor for name, tensor in state.items()}
    if wrap in ("state_dict", "model", "both"):
        state = {"epoch": 3, "model" if wrap == "model" else "state_dict": state}
    torch.save(state, tmp_path / "w.pt")
    loaded = load_model(tmp_path / "w.pt", classes=list(CLASSES), normalize="image", **SHAPE)
    assert_same(loaded, model)
    assert loaded.spec.classes == CLASSES
    assert loaded.spec.per_image


def test_a_safetensors_file_is_taken(model: Classifier, tmp_path: Path) -> None:
    save_file(weights_of(model), tmp_path / "w.safetensors")
    assert_same(load_model(tmp_path / "w.safetensors", classes=list(CLASSES), **SHAPE), model)


def test_a_data_parallel_safetensors_file_is_taken(model: Classifier, tmp_path: Path) -> None:
    save_file({f"module.{name}": tensor for name, tensor in weights_of(model).items()}, tmp_path / "w.safetensors")
    assert_same(load_model(tmp_path / "w.safetensors", classes=list(CLASSES), **SHAPE), model)


@pytest.mark.parametrize("name", ["digit_cnn", "resnet18"])
def test_the_classes_of_a_safetensors_file_are_counted_at_its_head(tmp_path: Path, name: str) -> None:
    save_file(weights_of(build(ModelSpec(name=name, num_classes=7))), tmp_path / "w.safetensors")
    assert load_model(tmp_path / "w.safetensors", name=name).spec.num_classes == 7


def test_half_precision_weights_are_taken_as_float32(model: Classifier, tmp_path: Path) -> None:
    torch.save({name: tensor.half() for name, tensor in model.network.state_dict().items()}, tmp_path / "w.pt")
    head = load_model(tmp_path / "w.pt", **SHAPE).head.weight
    assert head.dtype == torch.float32
    assert torch.equal(head, model.head.weight.half().float())


def test_a_torchvision_state_dict_gets_imagenets_normalisation(tmp_path: Path) -> None:
    theirs = build(ModelSpec(name="shufflenet_v2_x0_5", num_classes=6))
    torch.save(theirs.network.state_dict(), tmp_path / "w.pt")
    loaded = load_model(tmp_path / "w.pt", name="shufflenet_v2_x0_5")
    assert_same(loaded, theirs)
    assert (loaded.spec.mean, loaded.spec.num_classes) == ((0.485, 0.456, 0.406), 6)


def test_code_in_a_file_is_refused_and_never_run(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    torch.save({"head.weight": torch.ones(2), "extra": Dangerous(proof)}, tmp_path / "zip.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Dangerous(proof), protocol=2))
    for name in ("zip.pt", "bare.pt"):
        with pytest.raises(InputError):
            load_model(tmp_path / name, **SHAPE)
    assert not proof.exists()
    pickle.loads((tmp_path / "bare.pt").read_bytes())  # and the trap was a real one
    assert proof.exists()


def test_a_whole_pickled_model_is_refused_with_the_way_out(model: Classifier, tmp_path: Path) -> None:
    torch.save(model, tmp_path / "w.pt")
    with pytest.raises(InputError, match=r"code in a file is not run; save it with torch\.save\(model\.state_dict"):
        load_model(tmp_path / "w.pt", **SHAPE)


@pytest.mark.parametrize("content", [torch.ones(3), [1, 2], {"epoch": 3}, {"a": torch.ones(2), "epoch": 3}])
def test_a_file_of_other_things_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(InputError, match="is not a state dict of tensors"):
        load_model(tmp_path / "w.pt", **SHAPE)


def test_keys_that_are_no_words_are_refused(tmp_path: Path) -> None:
    torch.save({0: torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(InputError, match="is not a state dict of tensors"):
        load_model(tmp_path / "w.pt", **SHAPE)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no model at all", b"\x80\x02garbage" * 30])
def test_a_file_of_rubbish_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is damaged|{name} holds more"):
        load_model(tmp_path / name, **SHAPE)


def test_a_half_written_pt_file_is_refused(model: Classifier, tmp_path: Path) -> None:
    torch.save(model.network.state_dict(), tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    (tmp_path / "w.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is damaged"):
        load_model(tmp_path / "w.pt", **SHAPE)


@pytest.mark.parametrize("wrong", [{"normalize": "mean"}, {"colour": 1}, {"classes": ["one"]}])
def test_a_field_that_makes_no_sense_is_refused_with_one_sentence(
    model: Classifier, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    torch.save(model.network.state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError) as refused:
        load_model(tmp_path / "w.pt", **SHAPE, **wrong)
    assert "\n" not in str(refused.value)


def test_weights_alone_need_an_architecture(model: Classifier, tmp_path: Path) -> None:
    torch.save(model.network.state_dict(), tmp_path / "w.pt")
    with pytest.raises(InputError, match="say which architecture they are of: NAME="):
        load_model(tmp_path / "w.pt")


def test_a_place_without_a_model_is_refused_with_what_would_be_one(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing.pt"):
        with pytest.raises(InputError, match="there is no model at"):
            load_model(place, **SHAPE)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 3))


def test_a_folder_of_a_users_own_class_says_how_to_load_it(tmp_path: Path) -> None:
    own = Classifier(small_net(), ModelSpec(name="own/Net", num_classes=3))
    save_model(Folder(tmp_path), own)
    with pytest.raises(InputError, match=r"ray_adaplr.load\(folder, network=Net\(...\)\)"):
        load_model(tmp_path)
    assert_same(load_model(tmp_path, f"{__name__}:small_net"), own)
    again = load_model(tmp_path, like=own)
    assert torch.equal(again.network[1].weight, own.network[1].weight)


def test_a_runs_folder_stands_for_its_target_model(tmp_path: Path) -> None:
    model = build(ModelSpec(num_classes=3, **SHAPE))
    save_model(Folder(tmp_path / "target_model"), model)
    assert_same(load_model(tmp_path), model)


def test_what_a_folder_says_of_its_model_may_be_repeated_but_not_denied(tmp_path: Path) -> None:
    model = build(ModelSpec(num_classes=3, classes=("ant", "bee", "cat"), normalize="half", **SHAPE))
    save_model(Folder(tmp_path), model)
    assert_same(load_model(tmp_path, classes=["ant", "bee", "cat"], normalize="0.5/0.5"), model)
    with pytest.raises(InputError, match=r"what it is fed, any size grey, mean 0.5, std 0.5; leave --normalize out"):
        load_model(tmp_path, normalize="none")
    with pytest.raises(InputError, match="normalize='nonsense'"):
        load_model(tmp_path, normalize="nonsense")
    with pytest.raises(InputError, match="what its classes are, ant, bee, cat; leave --classes out"):
        load_model(tmp_path, classes=["cat", "bee", "ant"])


def test_a_model_without_class_names_takes_those_that_are_said(tmp_path: Path) -> None:
    save_model(Folder(tmp_path), build(ModelSpec(num_classes=3, **SHAPE)))
    assert load_model(tmp_path, classes=["ant", "bee", "cat"]).spec.classes == ("ant", "bee", "cat")
    with pytest.raises(InputError, match="tells 3 classes apart and --classes names 2"):
        load_model(tmp_path, classes=["ant", "bee"])


def test_one_number_for_all_channels_is_the_same_as_one_for_each(tmp_path: Path) -> None:
    three = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    save_model(Folder(tmp_path), build(ModelSpec(num_classes=3, name="digit_cnn", width=2, **three)))
    assert load_model(tmp_path, normalize="half").spec.mean == (0.5, 0.5, 0.5)


def test_a_factory_builds_a_users_network_and_a_folder_alone_cannot_make_it_run(tmp_path: Path) -> None:
    name = "torchvision.models:resnet18"
    made = build(ModelSpec(name=name, num_classes=1000))
    save_model(Folder(tmp_path), made)
    with pytest.raises(InputError, match="to run that, say --factory torchvision"):
        load_model(tmp_path)
    assert load_model(tmp_path, name).spec == made.spec


def test_a_model_folder_of_an_earlier_version_keeps_its_normalisation(model: Classifier, tmp_path: Path) -> None:
    save_model(Folder(tmp_path), model)
    fields = json.loads((tmp_path / "model.json").read_text())
    for name in ("mean", "std", "per_image"):
        del fields[name]
    (tmp_path / "model.json").write_text(json.dumps({**fields, "normalize": "image"}))
    assert load_model(tmp_path).spec == model.spec


def test_a_network_starts_from_the_weights_of_a_file_or_a_folder_with_a_head_of_its_own(tmp_path: Path) -> None:
    other = build(ModelSpec(num_classes=7), seed=5)
    torch.save(other.network.state_dict(), tmp_path / "other.pt")
    save_model(Folder(tmp_path / "model"), other)
    for start in (f"{tmp_path}/other.pt", f"digit_cnn={tmp_path}/other.pt", f"{tmp_path}/model"):
        begun = load_start(ModelSpec(num_classes=3), start, seed=0)
        first = "features.0.weight"
        assert torch.equal(begun.network.state_dict()[first], other.network.state_dict()[first])
        assert torch.equal(begun.head.weight, build(ModelSpec(num_classes=3), seed=0).head.weight)
    with pytest.raises(InputError, match="lacks"):
        load_start(ModelSpec(name="resnet18", num_classes=3), str(tmp_path / "other.pt"), seed=0)


class Wrapped(nn.Module):
    """A layer that has two names, as wrappers of a backbone often give it."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        self.fc = self.backbone[1]

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone(images)


def test_a_layer_with_two_names_is_written_under_both_and_read_again(tmp_path: Path) -> None:
    model = Classifier(Wrapped(), ModelSpec(name="own", num_classes=3, channels=1, head="backbone.1"))
    save_model(Folder(tmp_path), model)
    read = load_model(tmp_path, like=Classifier(Wrapped(), model.spec))
    assert torch.equal(read.network.fc.weight, model.network.fc.weight)  # type: ignore[union-attr]
    assert {"backbone.1.weight", "fc.weight"} <= load_file(tmp_path / "model.safetensors").keys()
