"""The main job on an embedded default: real digits from pip packages, a source model, three members, a report."""

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.stages.pretrain import SourcePlan, pretrain

SIZE = 16


def run_demo(
    out: str, source: str, target: str, config: Config, scaling: ScalingConfig, *, force: bool, command: str,
    progress: Progress,
) -> Result:  # fmt: skip
    """Prepare two domains, train a source model on one, adapt it to the other; everything lies in `out`."""
    stores = {}
    for name in (source, target):
        place = f"{out}/stores/{name}"
        try:
            stores[name] = ImageStore.open(place)
        except ValueError:
            stores[name] = demo_domain(name, place, size=SIZE)
    channels = stores[source].image_shape[2]
    spec = ModelSpec(num_classes=10, channels=channels, image_size=(SIZE, SIZE), classes=tuple(stores[source].classes))  # type: ignore[arg-type]
    model = pretrain(SourcePlan(stores[source], f"{out}/source", spec, config, scaling), force=force, progress=progress)
    return adapt(
        RunPlan([model], stores[target], out, config, scaling, source_names=[f"{out}/source"], command=command),
        force=force,
        progress=progress,
    )
