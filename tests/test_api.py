"""`AdaPLR.fit` takes any module and any images, and says in one sentence what it cannot take."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import LOCAL
from torch import Tensor, nn

from ray_adaplr import AdaPLR, Config, ScalingConfig, export, load
from ray_adaplr.core.models import DigitCNN
from ray_adaplr.data.open import as_store
from ray_adaplr.errors import InputError
from ray_adaplr.stages.in_python import in_python_terms

IMAGES = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), dtype=np.uint8)
SHORT = Config(n_e=1, epochs=1, distill_epochs=1, warm_start="off")


class Perceptron(nn.Module):
    """A network without convolutions, so that nothing in it tells how many channels it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


def fit(out: Path, source: Any = None, config: Config = SHORT, **options: Any) -> None:
    trainer = AdaPLR(config, LOCAL, verbose=False)
    result = trainer.fit(source or Perceptron(), IMAGES, out, **options)
    assert len(result.labels) == len(IMAGES)


def test_a_module_without_convolutions_takes_the_images_channels(tmp_path: Path) -> None:
    fit(tmp_path / "run", normalize="none")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_module_of_other_numbers_is_adapted_in_float32_and_stays_as_it_is(dtype: torch.dtype, tmp_path: Path) -> None:
    network = Perceptron().to(dtype).train()
    AdaPLR(SHORT, LOCAL, verbose=False).fit(network, IMAGES, tmp_path / "run", normalize="none", until="infer")
    assert (network.head.weight.dtype, network.training) == (dtype, True)


def test_a_layer_that_is_not_the_head_is_refused_before_any_work(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    network[1].fc = nn.Linear(8, 3)  # never used, and the last one
    with pytest.raises(InputError, match=r"'1.fc', which was taken for the head of Sequential, does not give its l"):
        fit(tmp_path / "run", network, normalize="none")
    assert not (tmp_path / "run/config.toml").exists()
    fit(tmp_path / "run", network, normalize="none", head="1")


def test_a_run_prints_once_what_it_feeds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AdaPLR(SHORT, LOCAL).fit(Perceptron(), IMAGES, tmp_path / "run", normalize="half")
    said = capsys.readouterr()
    assert (said.out + said.err).count("the model is fed 8x8 grey, mean 0.5, std 0.5") == 1


def test_a_fit_runs_as_far_as_it_is_told_and_goes_on_to_the_same_labels(tmp_path: Path) -> None:
    fit = partial(AdaPLR(SHORT, LOCAL, verbose=False).fit, Perceptron(), IMAGES, normalize="none")
    begun = fit(out=tmp_path / "run", until="infer")
    with pytest.raises(InputError, match="has no refined labels yet; the same call without until goes on"):
        _ = begun.labels
    assert len(fit(out=tmp_path / "run", until="refine").labels) == len(IMAGES)
    assert fit(out=tmp_path / "run").labels.equals(fit(out=tmp_path / "straight").labels)
    with pytest.raises(InputError, match="until='label' is no stage; give one of infer, refine, distill"):
        fit(out=tmp_path / "run", until="label")  # type: ignore[arg-type]


def test_a_fit_that_is_interrupted_says_how_to_go_on_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    network = Perceptron()
    with monkeypatch.context() as stopped:
        stopped.setattr("ray_adaplr.stages.adapt.Adaptation._distill", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path / "run", network, normalize="none")
    assert f"the same call continues from the last checkpoint in {tmp_path / 'run'}" in capsys.readouterr().out
    fit(tmp_path / "run", network, normalize="none")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "normalize='imagenet' is for three channels"),
        ({"normalize": "mean"}, "normalize='mean'"),
        ({"normalize": (0.5, 0.2)}, r"normalize=\(0.5, 0.2\)"),
        ({"normalize": "none", "head": "hed"}, "did you mean 'head'"),
        ({"source": Perceptron().forward}, "a method is not a source"),
        ({"source": __file__}, "holds weights alone; load them into a network"),
    ],
)
def test_what_a_module_cannot_be_is_told(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        fit(tmp_path / "run", **options)


def test_settings_that_cannot_be_are_refused_before_a_store_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="use n_e<=2"):
        fit(tmp_path / "run", config=SHORT.model_copy(update={"n_e": 5, "residuals": "drl"}))
    assert not (tmp_path / "run").exists()


def test_other_weights_or_another_normalisation_are_another_run(tmp_path: Path) -> None:
    network = Perceptron()
    for _ in range(2):  # the second call finds the first one's result
        fit(tmp_path / "run", network, normalize=[[0.5], [0.2]])
    with pytest.raises(InputError, match="holds a run of another source model or normalisation; use force=True to"):
        fit(tmp_path / "run", Perceptron(), normalize=[[0.5], [0.2]])
    with pytest.raises(InputError, match="another source model"):
        fit(tmp_path / "run", network, normalize=[[0.5], [0.3]])


def test_a_setting_that_is_given_to_fit_is_told_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"stop is a setting: AdaPLR\(Config\(stop='auto'\)\).fit"):
        fit(tmp_path / "run", normalize="none", stop="auto")
    with pytest.raises(InputError, match=r"seed is a setting: AdaPLR\(Config\(seed=1\)\).fit"):
        fit(tmp_path / "run", normalize="none", seed=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("unrendered")
def test_classes_that_fit_is_told_name_those_of_the_model(tmp_path: Path) -> None:
    store = as_store(IMAGES, tmp_path)
    torch.save(DigitCNN(3).state_dict(), tmp_path / "w.pt")
    trainer, names = AdaPLR(SHORT, LOCAL, verbose=False), ("ant", "bee", "cat")
    for source in (DigitCNN(3, channels=1), f"digit_cnn={tmp_path}/w.pt"):
        result = trainer.fit(source, store, tmp_path / type(source).__name__, classes=names, normalize="none")
        assert set(result.labels["refined_class"].to_pylist()) <= set(names)
        assert result.input.classes == names
    with pytest.raises(InputError, match="tells 3 classes apart and classes names 2"):
        trainer.fit(DigitCNN(3, channels=1), store, tmp_path / "two", classes=names[:2], normalize="none")
    with pytest.raises(InputError, match="size says how pictures become a store, and the target is one already"):
        trainer.fit(DigitCNN(3, channels=1), store, tmp_path / "size", size=16, normalize="none")


def test_a_misspelt_option_of_the_images_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no option 'sise'; did you mean 'size'"):
        fit(tmp_path / "run", normalize="none", sise="8")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Config(alpha=3), "alpha=3: input should be less than 1"),
        (lambda: Config(epoch=3), "there is no option 'epoch'; did you mean 'epochs'"),  # type: ignore[call-arg]
        (lambda: Config(n_e=2, member_weights=(1.0,)), "member_weights has 1 values"),
        (lambda: ScalingConfig(threads=0), "threads=0: input should be greater"),
        (lambda: AdaPLR({"alpha": 0.5}), r"a dict holds no settings; give Config\("),  # type: ignore[arg-type]
        (lambda: AdaPLR(None, Config()), r"give ScalingConfig\("),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_told_in_one_sentence(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_a_sentence_for_the_command_line_is_put_into_the_terms_of_python() -> None:
    expected = "use force=True, size=64, n_e=2 or another out; see unlabelled=True, image_column"
    with pytest.raises(InputError, match=f"^{expected}$"), in_python_terms():
        raise InputError(
            "use --force, --size 64, --set n_e=2 or another --out; see --unlabelled to prepare or adapt, "
            "--image-column to prepare"
        )


def test_what_only_the_command_line_has_is_not_told_in_python(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"say which architecture they are of: NAME=\S+weights\.safetensors$"):
        load(tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match=r"^labels of your own: labels=FILE$"), in_python_terms():
        raise InputError("labels of your own: --labels FILE")


@pytest.mark.parametrize("place", ["/data/my--model--v2/x", "hf:microsoft--resnet-50", "models--timm--vit"])
def test_names_with_dashes_stay_as_they_are_in_the_terms_of_python(place: str) -> None:
    with pytest.raises(InputError, match=f"^there is no {place}$"), in_python_terms():
        raise InputError(f"there is no {place}")


def test_an_error_for_python_shows_no_keys() -> None:
    with pytest.raises(InputError) as told, in_python_terms():
        raise InputError("cannot use storage s3://KEY:SECRET@bucket/runs")
    assert str(told.value) == "cannot use storage s3://***@bucket/runs"


@pytest.mark.usefixtures("unrendered")
def test_a_run_is_forked_from_another_one(tmp_path: Path) -> None:
    network = Perceptron()
    fit(tmp_path / "run", network, normalize="none")
    with pytest.raises(InputError, match=r"epochs: 1 -> 2.*fork=RUN with another out"):
        fit(tmp_path / "run", network, SHORT.model_copy(update={"epochs": 2}), normalize="none")
    fork = {"fork": str(tmp_path / "run"), "normalize": "none"}
    fit(tmp_path / "more", network, SHORT.model_copy(update={"epochs": 2}), **fork)


@pytest.mark.usefixtures("unrendered")
def test_a_fit_that_starts_again_does_not_remove_what_it_reads(tmp_path: Path) -> None:
    labels = tmp_path / "run/labels.parquet"
    fit(tmp_path / "run", normalize="none")
    with pytest.raises(InputError, match=r"^labels .* lies in out .*, and force=True would remove it; choose another"):
        fit(tmp_path / "run", normalize="none", labels=labels, force=True)
    assert labels.exists()


@pytest.mark.usefixtures("unrendered")
def test_what_fit_is_told_of_weights_is_obeyed_or_refused(tmp_path: Path) -> None:
    torch.save(DigitCNN(3).state_dict(), tmp_path / "w.pt")
    weights = f"digit_cnn={tmp_path}/w.pt"
    fit = AdaPLR(SHORT, LOCAL, verbose=False).fit
    for given, mean in (("half", 0.5), (((0.25,), (0.5,)), 0.25)):
        result = fit(weights, IMAGES, tmp_path / str(mean), normalize=given, head="head")
        assert result.input.mean == (mean,)
    with pytest.raises(InputError, match="normalize='nonsense'"):
        fit(weights, IMAGES, tmp_path / "run", normalize="nonsense")
    folder = tmp_path / "0.5/target_model"
    with pytest.raises(InputError, match="leave normalize out"):
        fit(folder, IMAGES, tmp_path / "run", normalize="none")
    with pytest.raises(InputError, match="head is its layer head, not fc"):
        fit(folder, IMAGES, tmp_path / "run", head="fc")


@pytest.mark.usefixtures("unrendered")
def test_a_network_that_is_fed_255_is_fed_that_by_its_result_too(tmp_path: Path) -> None:
    result = AdaPLR(SHORT, LOCAL, verbose=False).fit(Perceptron(), IMAGES, tmp_path, normalize=((0,), (1 / 255,)))
    images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    expected = result.predict(IMAGES)["label"].to_pylist()
    assert result.model(images).argmax(1).tolist() == expected
    with pytest.raises(InputError, match="normalise them as"):
        result.model(255 * images)


@pytest.mark.usefixtures("unrendered")
def test_images_that_are_no_squares_are_predicted_as_they_were_adapted_to(tmp_path: Path) -> None:
    wide = np.random.default_rng(0).integers(0, 256, (12, 8, 16, 1), dtype=np.uint8)
    result = AdaPLR(SHORT, LOCAL, verbose=False).fit(DigitCNN(3, 1, 4), wide, tmp_path, normalize="none")
    assert result.input.image_size == (8, 16)
    assert len(result.predict(wide)) == 12


class Prototypes(nn.Module):
    """A head that is no linear layer: the cosine of features and each class's prototype."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.out_features, self.weight = out_features, nn.Parameter(torch.rand(out_features, in_features))

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        return 10 * nn.functional.normalize(features) @ nn.functional.normalize(self.weight).T


class ByPrototypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, 2), nn.ReLU(), nn.Flatten())
        self.nearest = Prototypes(36, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.nearest(self.body(images))


@pytest.mark.usefixtures("unrendered")
def test_a_network_whose_head_is_no_linear_layer_is_filled_in_by_the_head_that_its_folder_names(tmp_path: Path) -> None:
    fit = AdaPLR(SHORT, LOCAL, verbose=False).fit
    result = fit(ByPrototypes(), IMAGES, tmp_path / "run", normalize="none", head="nearest")
    loaded = load(tmp_path / "run" / "target_model", network=ByPrototypes())
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(loaded(images), result.model(images))
    said = export(tmp_path / "run", "torch-export", tmp_path / "model.pt2", network=ByPrototypes())
    assert str(tmp_path / "model.pt2") in said
    with pytest.raises(InputError, match="no layer 'nearest' to be its head"):
        load(tmp_path / "run" / "target_model", network=Perceptron())


def test_help_shows_what_fit_takes() -> None:
    shown = inspect.signature(AdaPLR.fit).parameters
    assert {"normalize", "head", "labels", "guest", "guest_images", "fork", "track", "force"} <= shown.keys()
