"""What a run is: which models are adapted to which images, where, and under which settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.given_labels import fingerprint
from ray_adaplr.data.store import ImageStore
from ray_adaplr.storage.models import fingerprint as fingerprint_of_model
from ray_adaplr.storage.secrets import redacted


@dataclass(frozen=True)
class RunPlan:
    """One adaptation, as `adapt` carries it out; an equal plan in the same folder resumes."""

    sources: list[Classifier]  # several are fused, and member k starts from source k mod their number
    store: ImageStore  # the target's images
    out: str  # the run's folder
    config: Config
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    given: np.ndarray | None = None  # labels from a file, int64 [n] with -1 where none: all are a start, some are fixed
    source_names: Sequence[str] = ()  # what run.json calls the sources; empty: by their architectures
    command: str = ""  # the command line, for the record
    guests: Sequence[Classifier] = ()  # frozen networks that vote on the first labels

    @property
    def spec(self) -> ModelSpec:
        """What all models of the run have in common."""
        return self.sources[0].spec

    @property
    def classes(self) -> list[str]:
        """Class names, as the store or else the model has them."""
        return self.store.classes or list(self.spec.classes)

    def origin(self) -> dict[str, Any]:
        """What run.json records beside the settings."""
        return {
            "source": [redacted(name) for name in self.source_names] or [source.spec.name for source in self.sources],
            "source_specs": [source.spec.model_dump(exclude={"num_classes"}) for source in self.sources],
            "source_fingerprint": " ".join(map(fingerprint_of_model, self.sources)),
            "target": [redacted(path) for path in self.store.paths],
            "target_fingerprint": self.store.fingerprint,
            "guest_fingerprint": " ".join(map(fingerprint_of_model, self.guests)),
            "classes": self.classes,
            "num_classes": self.spec.num_classes,
            "given_labels": fingerprint(self.given),
            "command": redacted(self.command),
        }
