"""The model card: read by the hub's own package, true, fit to be shown to strangers, and its code runs without us."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.data.store import ImageStore
from ray_adaplr.report.card import escaped, loading_code, model_card, public_name
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.result import Result
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import save_model
from ray_adaplr.storage.run_reader import read_run

HOSTILE = "</a><script>alert(1)</script> | [x](http://y) `z` *b* www.evil.example @all"
WITHOUT_US = """
import os, sys
sys.modules["ray_adaplr"] = None
import torch
for folder in sys.argv[1:]:
    os.chdir(folder)
    found = {}
    with torch.no_grad():
        exec(open("code.py").read(), found)
    torch.save((found["images"], found["scores"]), "found.pt")
"""


def card_of(result: Result) -> str:
    return Path(result.path, "target_model/README.md").read_text()


def test_the_hubs_package_reads_the_card_of_a_finished_run(straight_run: Result) -> None:
    hub = pytest.importorskip("huggingface_hub")
    card = hub.ModelCard.load(Path(straight_run.path, "target_model/README.md"))
    assert card.data.pipeline_tag == "image-classification"
    assert "domain-adaptation" in card.data.tags
    assert hub.ModelCardData(**card.data.to_dict()).to_dict() == card.data.to_dict()
    summary, text = straight_run.summary, card.text
    assert "300 unlabelled images of optdigits" in text
    assert "0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in text
    assert f"{summary['changed_share']:.1%}" in text
    assert "| `alpha` | 0.5 |" in text
    assert f"| `infomax` | {straight_run.metrics[3]['infomax']:.3f} | more |" in text
    figures = text[text.index("## Diagnostic figures") :]
    assert "never trained anything" in figures
    assert f"| this model | {summary['target']:.3f} |" in figures


@pytest.mark.parametrize("shipped", [{"epoch": 1, "labels": "epoch 2"}, {"labels": "epoch 1"}], ids=["now", "older"])
def test_the_figures_of_a_card_are_of_the_epoch_whose_labels_were_kept(
    shipped: dict[str, Any], straight_run: Result
) -> None:
    run = read_run(straight_run.path)
    run = dataclasses.replace(run, summary={**run.summary, "shipped": shipped})
    card = model_card(run, straight_run.input, ["optdigits"])
    assert f"| `infomax` | {straight_run.metrics[1]['infomax']:.3f} | more |" in card


def test_a_card_holds_no_path_of_this_machine_and_no_key(straight_run: Result) -> None:
    run = read_run(straight_run.path)
    places = ["/home/me/secret-project/photo", "s3://KEY:SECRET@bucket/photo?session_token=T", "file:///home/me/art"]
    origin = {**run.origin, "source": places}
    settings = {**run.settings, "prior": "/home/me/shares.csv"}
    warned = {**run.summary, "warnings": ["node 10.0.0.1: cannot read /home/me/x"]}
    run = dataclasses.replace(run, origin=origin, settings=settings, summary=warned)
    card = model_card(run, straight_run.input, ["optdigits"])
    for secret in ("home", "secret-project", "KEY", "SECRET", "token", "10.0.0.1", str(Path(straight_run.path).parent)):
        assert secret not in card
        assert secret not in card_of(straight_run)
    assert "photo, s3\\://\\*\\*\\*\\@bucket/photo, art" in card
    assert "| `prior` | from a file |" in card


def test_names_from_users_stay_text(straight_run: Result) -> None:
    markdown = pytest.importorskip("markdown_it")
    names = tuple(f"{HOSTILE} {number}" for number in range(10))
    spec = straight_run.input.model_copy(update={"classes": names, "name": f"own/{HOSTILE}"})
    run = read_run(straight_run.path)
    run = dataclasses.replace(run, origin={**run.origin, "source": [HOSTILE.replace("/", "")]})
    card = model_card(run, spec, [HOSTILE])
    page = markdown.MarkdownIt("gfm-like", {"linkify": False}).render(card.partition("---\n\n")[2])
    for made in ("<script", "<a ", "<img", "<em>"):
        assert made not in page
    assert page.count("<table>") == 3
    assert "from your_module import YourNetwork" in page
    assert escaped("a\nb") == "a b"
    many = straight_run.input.model_copy(update={"classes": tuple(map(str, range(50))), "num_classes": 50})
    assert "19 and 30 more, all in `model.json`" in model_card(run, many, ["x"])


def test_a_place_is_named_as_strangers_may_read_it() -> None:
    assert public_name("resnet50=/home/me/weights.pt") == "weights.pt"
    assert public_name("file:///home/me/photo") == "photo"
    assert public_name("/home/me/why?/photo") == "photo"
    assert public_name("gs://bucket/photo") == "gs://bucket/photo"


def hugging_face() -> Classifier:
    from ray_adaplr.core.hugging_face import plain_config

    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=8).to_dict()
    return build(ModelSpec(name="hf/vit", num_classes=3, image_size=(16, 16), config=plain_config(config)))


def test_the_lines_of_a_card_load_each_kind_of_network_without_this_package(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    mean: dict[str, Any] = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.2), "classes": ("ä", "b", 'c"')}
    kinds = {
        "digit_cnn": ModelSpec(num_classes=3, channels=1, width=4, image_size=(16, 16)),
        "per image": ModelSpec(num_classes=3, width=4, image_size=(16, 16), per_image=True),
        "torchvision": ModelSpec(name="shufflenet_v2_x0_5", num_classes=3, image_size=(32, 32), **mean),
        "timm": ModelSpec(name="timm/test_resnet", num_classes=3, channels=1, image_size=(32, 32), normalize="half"),
    }
    models = {kind: build(spec) for kind, spec in kinds.items()} | {"hf": hugging_face()}
    for kind, model in models.items():
        save_model(Folder(tmp_path / kind), model)
        code = loading_code(model.spec)
        assert len(code.splitlines()) <= {"torchvision": 10, "timm": 10, "hf": 12}.get(kind, 13)
        (tmp_path / kind / "code.py").write_text(code)
    command = [sys.executable, "-c", WITHOUT_US, *(str(tmp_path / kind) for kind in models)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for kind, model in models.items():
        images, scores = torch.load(tmp_path / kind / "found.pt", weights_only=True)
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(images), scores, atol=1e-5, rtol=0)
    assert len(done.stdout.splitlines()) == len(models)


def test_a_missing_card_is_written_again_and_somebodys_own_stays(
    source_model: Classifier,
    digit_stores: dict[str, ImageStore],
    small_config: Config,
    straight_run: Result,
    tmp_path: Path,
    unrendered: None,
) -> None:
    short = small_config.model_copy(update={"epochs": 1, "distill_epochs": 1, "warm_start": "off"})
    plan = RunPlan(
        [source_model], digit_stores["optdigits"], str(tmp_path / "run"), short, ScalingConfig(engine="local")
    )
    adapt(plan)
    card, weights = tmp_path / "run/target_model/README.md", tmp_path / "run/target_model/model.safetensors"
    first, bits = card.read_text(), weights.read_bytes()
    card.unlink()
    adapt(plan)
    assert card.read_text() == first, "the same run writes the same card"
    card.write_text("my own words")
    adapt(plan, force=True)
    assert card.read_text() == "my own words"
    assert weights.read_bytes() == bits
    card.write_text(first.replace("without source data", "with a word of mine"))
    adapt(plan, force=True)
    assert card.read_text() == first


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_a_card_builds_a_network_as_its_published_weights_want_it(name: str) -> None:
    code = loading_code(ModelSpec(name=name, num_classes=3, image_size=(96, 96)))
    assert f'get_model("{name}", num_classes=3, transform_input=True' in code
