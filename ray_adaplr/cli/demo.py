"""The main job on an embedded default: real digits from pip packages, a source model, three members, a report."""

from contextlib import ExitStack

from ray_adaplr.cli.options import Settings
from ray_adaplr.core.models import ModelSpec
from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.options import DIGITS
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import placement
from ray_adaplr.engine.seating import check_batch, check_fit, seating
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.stages.plan import check_settings
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.storage.folder import joined
from ray_adaplr.storage.run import Run

SIZE = 16


def run_demo(out: str, domains: tuple[str, str], settings: Settings, force: bool, command: str) -> Result:
    """Prepare two domains, train a source model on the first, adapt it to the second; everything lies in `out`.

    Settings, folder and resources are checked before anything trains.
    """
    config, scaling, progress = settings.config, settings.scaling, settings.progress
    Run(out).check(check_settings(config.following(False), len(DIGITS)), {}, force)
    check_batch(scaling, config.batch_size)
    with ExitStack() as stack:
        if scaling.engine == "ray":  # one Ray for both trainings
            stack.enter_context(placement.connected(scaling))
            nodes = placement.live_nodes()
            seated = seating(config.n_e, nodes, scaling, config.batch_size)
            if not scaling.wait_for_nodes:
                check_fit(seated.bundles, nodes, seated.ranks)
        source, target = (_store(out, name) for name in domains)
        channels = 1 if source.image_shape[2] == 1 else 3
        spec = ModelSpec(num_classes=len(DIGITS), channels=channels, image_size=(SIZE, SIZE), classes=DIGITS)
        place = joined(out, "source")
        model = pretrain(SourcePlan(source, place, spec, config, scaling), force=force, progress=progress)
        plan = RunPlan([model], target, out, config, scaling, source_names=[place], command=command)
        return adapt(plan, force=force, progress=progress)


def _store(out: str, name: str) -> ImageStore:
    place = joined(out, f"stores/{name}")
    try:
        return ImageStore.open(place)
    except ValueError:
        return demo_domain(name, place, size=SIZE)
