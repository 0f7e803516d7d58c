"""A small task of real digits for the pretended accelerator, and the settings that it is run with."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.adapt import Result, RunPlan

ON_CPU = ScalingConfig(engine="local", gpus_per_member=0)
ON_DEVICE = ScalingConfig(engine="local")
SPEC = ModelSpec(
    num_classes=10, channels=1, width=4, image_size=(16, 16), classes=tuple("0123456789"), normalize="half"
)
CONFIG = Config(
    n_e=2, epochs=3, distill_epochs=2, pretrain_epochs=2, warm_start_epochs=1, warm_start_trust=0.0, warmup=1, alpha=0.5
)


@dataclass(frozen=True)
class Task:
    """Images and a source model."""

    source_images: ImageStore
    target: ImageStore
    source: Classifier

    def plan(self, out: Path, scaling: ScalingConfig, config: Config = CONFIG) -> RunPlan:
        """A run of it."""
        return RunPlan([self.source], self.target, str(out), config, scaling)


def bits(result: Result) -> tuple[pa.Table, bytes]:
    """What must be the same everywhere: labels with confidences, and the target model's weights."""
    return result.labels, Path(result.path, "target_model", "model.safetensors").read_bytes()
