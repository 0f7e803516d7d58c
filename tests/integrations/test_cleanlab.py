"""Labels go out with cleanlab's columns, and corrections come back through --labels."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ray_adaplr import AdaPLR, Config, ScalingConfig
from ray_adaplr.cli.main import main
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.result import Result

pytestmark = pytest.mark.usefixtures("unrendered")
SHORT = Config(n_e=2, epochs=2, warmup=0, distill_epochs=1, warm_start="off", alpha=0.3)


def exported(run: str, out: Path) -> pd.DataFrame:
    assert main(["export", run, "--to", "cleanlab", "--out", str(out)]) == 0
    return pd.read_csv(out, dtype={"id": str, "given_label": str, "predicted_label": str})


def test_a_runs_labels_have_cleanlabs_columns(
    straight_run: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = exported(straight_run.path, tmp_path / "issues.csv")
    assert "not out of sample" in capsys.readouterr().out
    assert list(table) == ["id", "given_label", "predicted_label", "label_score", "is_label_issue"]
    labels = straight_run.labels.to_pandas()
    assert table["id"].tolist() == labels["id"].tolist()
    assert table["given_label"].tolist() == labels["initial_class"].tolist()
    assert table["predicted_label"].tolist() == labels["refined_class"].tolist()
    changed = labels["initial_label"] != labels["refined_label"]
    assert table["is_label_issue"].tolist() == changed.tolist()
    assert changed.any()
    expected = np.where(changed, 1 - labels["confidence"], labels["confidence"])
    np.testing.assert_allclose(table["label_score"], expected, atol=1e-6)
    exported(straight_run.path, tmp_path / "issues.csv")  # ours may be replaced


def test_corrections_of_what_cleanlab_finds_come_back_and_are_held_fixed(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    """Labels out, corrected by what cleanlab finds and a person says, in through --labels, and out again."""
    rank = pytest.importorskip("cleanlab.rank")
    store, trainer = digit_stores["optdigits"], AdaPLR(SHORT, ScalingConfig(engine="local"), verbose=False)
    with_probabilities = AdaPLR(SHORT.model_copy(update={"probabilities": True}), trainer.scaling_config, False)
    result = with_probabilities.fit(source_model, store, tmp_path / "first")
    table = exported(result.path, tmp_path / "issues.csv")

    labels = result.labels.to_pandas()
    probabilities = labels.filter(like="p_").to_numpy(np.float64)
    theirs = rank.get_self_confidence_for_each_label(labels["initial_label"].to_numpy(), probabilities)
    np.testing.assert_allclose(table["label_score"], theirs, atol=1e-6)

    doubted = table.nsmallest(10, "label_score")
    wrong = ((doubted["predicted_label"].astype(int) + 5) % 10).astype(str)  # nothing would choose these by itself
    corrections = pd.DataFrame({"id": doubted["id"], "label": wrong})
    corrections.to_csv(tmp_path / "corrections.csv", index=False)
    again = trainer.fit(source_model, store, tmp_path / "second", labels=tmp_path / "corrections.csv")
    held = again.labels.to_pandas().set_index("id").loc[corrections["id"]]
    assert held["refined_class"].tolist() == wrong.tolist()
    assert (held["confidence"] == 1).all()

    fixed = exported(again.path, tmp_path / "again.csv").set_index("id").loc[corrections["id"]]
    assert fixed["given_label"].tolist() == wrong.tolist()
    assert not fixed["is_label_issue"].any()
    assert (fixed["label_score"] == 1).all()


def test_labels_that_a_file_gave_for_all_images_are_the_given_ones(
    source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    store = digit_stores["optdigits"]
    given = np.arange(len(store)) % 10
    trainer = AdaPLR(SHORT, ScalingConfig(engine="local"), verbose=False)
    result = trainer.fit(source_model, store, tmp_path / "run", labels=given.tolist())
    assert exported(result.path, tmp_path / "a.csv")["given_label"].astype(int).tolist() == given.tolist()
