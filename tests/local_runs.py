"""What tests of whole runs share: where to run them, and what must not differ between two that are the same."""

from pathlib import Path

from ray_adaplr.config import ScalingConfig
from ray_adaplr.stages.adapt import Result
from ray_adaplr.storage.folder import Folder

LOCAL = ScalingConfig(engine="local")


def bits(run: Result | Path) -> list[bytes]:
    """The refined labels and the target model's weights, from a disk or a bucket."""
    folder = Folder(run if isinstance(run, Path) else run.path)
    return [folder.read(name) for name in ("labels.parquet", "target_model/model.safetensors")]
