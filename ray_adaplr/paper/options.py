"""What can be said of the rows of the paper's tables that are to be made."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from ray_adaplr.errors import Checked


class PaperOptions(Checked):
    """Which tasks, how many runs, and what is other than in the paper's protocol."""

    task: list[str] = Field([], description="e.g. usps-mnist, rest-usps; repeatable; default: all whose data is there")
    seeds: int = Field(3, ge=1, le=1000, description="runs per task")
    scale: float = Field(1.0, gt=0, le=1, description="this share of the images and of the epochs")
    images: int | None = Field(None, ge=1, description="target images per domain to adapt to; default: the protocol's")
    data: str | None = Field(None, description="folder of the data; default: $ADAPLR_DATA")
    size: int | None = Field(None, ge=1, le=4096, description="side of the images in pixels; default: the protocol's")
    backbone: str | None = Field(None, description="weights the source model starts from, e.g. ImageNet's")
    late_fusion: bool = Field(False, description="a model for each source instead of one for all")
    preset: str | None = Field(None, description="instead of the paper's settings, e.g. robust")


@dataclass(frozen=True)
class PaperJob:
    """Where the rows go, and the settings of their runs."""

    out: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the preset's settings
    force: bool = False
    command: str = ""
