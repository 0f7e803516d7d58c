"""What can be said of the rows of the paper's tables that are to be made."""

from dataclasses import dataclass, field
from typing import Any

from ray_adaplr.errors import Checked, option


class PaperOptions(Checked):
    """Which tasks, how many runs, and what is other than in the paper's protocol."""

    task: list[str] = option([], "e.g. usps-mnist, rest-usps; repeatable; default: all whose data is there")
    seeds: int = option(3, "runs per task", ge=1, le=1000)
    scale: float = option(1.0, "this share of the images and of the epochs", gt=0, le=1)
    images: int | None = option(None, "target images per domain to adapt to; default: the protocol's", ge=1)
    data: str | None = option(None, "folder of the data; default: $ADAPLR_DATA")
    size: int | None = option(None, "side of the images in pixels; default: the protocol's", ge=1, le=4096)
    backbone: str | None = option(None, "weights the source model starts from, e.g. ImageNet's")
    late_fusion: bool = option(False, "a model for each source instead of one for all")
    preset: str | None = option(None, "instead of the paper's settings, e.g. robust")


@dataclass(frozen=True)
class PaperJob:
    """Where the rows go, and the settings of their runs."""

    out: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the preset's settings
    force: bool = False
    command: str = ""
