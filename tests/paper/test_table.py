"""The figures of a run that stand in the paper's tables."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.paper.table import ALL, STAGES, accuracies
from ray_adaplr.storage.models import save_model
from ray_adaplr.storage.run import Run


def test_by_class_all_is_the_mean_over_the_classes_that_have_images(tmp_path: Path) -> None:
    truth = np.repeat([0, 1], [8, 2])  # of the third class there is none
    ids, images = [str(i) for i in range(10)], np.zeros((10, 28, 28, 1), np.uint8)
    store = write_store(tmp_path / "store", [(ids, images)], classes=["a", "b", "c"], domain="d", truth=truth)
    first, refined = np.zeros(10, np.int32), np.repeat(np.array([1, 0, 1], np.int32), [2, 6, 2])
    run = Run(tmp_path / "run")
    run.folder.write_json("run.json", {})
    run.write_labels(pa.table({"id": ids, "initial_label": first, "refined_label": refined}))
    model = build(ModelSpec(num_classes=3, channels=1))
    with torch.no_grad():
        model.network.head.bias.copy_(torch.tensor([1e6, 0.0, 0.0]))  # the first class, whatever it sees
    save_model(run.folder / "target_model", model)

    by_class = accuracies(run, model, store, store, per_class=True)
    assert [by_class[stage]["b"] for stage in STAGES] == [0, 100, 0]
    assert [by_class[stage]["c"] for stage in STAGES] == [None] * 3
    assert [by_class[stage][ALL] for stage in STAGES] == [50, 87.5, 50]
    pooled = accuracies(run, model, store, store)
    assert [pooled[stage][ALL] for stage in STAGES] == pytest.approx([80, 80, 80])
