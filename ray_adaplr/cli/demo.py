"""The main job on an embedded default: real digits from pip packages, a source model, three members, a report."""

from ray_adaplr.cli.options import Settings
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.stages.pretrain import SourcePlan, pretrain

SIZE = 16
CLASSES = tuple("0123456789")


def run_demo(out: str, domains: tuple[str, str], settings: Settings, force: bool, command: str) -> Result:
    """Prepare two domains, train a source model on the first, adapt it to the second; everything lies in `out`."""
    source, target = (_store(out, name) for name in domains)
    channels = 1 if source.image_shape[2] == 1 else 3
    spec = ModelSpec(num_classes=10, channels=channels, image_size=(SIZE, SIZE), classes=CLASSES)
    config, scaling, progress = settings.config, settings.scaling, settings.progress
    model = pretrain(SourcePlan(source, f"{out}/source", spec, config, scaling), force=force, progress=progress)
    plan = RunPlan([model], target, out, config, scaling, source_names=[f"{out}/source"], command=command)
    return adapt(plan, force=force, progress=progress)


def _store(out: str, name: str) -> ImageStore:
    place = f"{out}/stores/{name}"
    try:
        return ImageStore.open(place)
    except ValueError:
        return demo_domain(name, place, size=SIZE)
