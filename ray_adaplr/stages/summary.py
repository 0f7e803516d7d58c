"""What a finished run comes to: summary.json, the model card, report.html and TensorBoard's table of settings.

With `stop = "auto"` also which labels and which model to ship, by the label-free score that stops refinement.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.core.devices import usable_device
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import predict_logits
from ray_adaplr.core.refine import RefineState
from ray_adaplr.core.scores import DEFAULT_SCORE, best_epoch, label_free
from ray_adaplr.data.store import ImageStore
from ray_adaplr.report.card import model_card
from ray_adaplr.report.tensorboard import write_outcome
from ray_adaplr.stages.plan import RunPlan
from ray_adaplr.storage.inferred import Inferred
from ray_adaplr.storage.layout import ENSEMBLE, MODEL_CARD, ORIGIN, REPORT, SHIPPED, SUMMARY
from ray_adaplr.storage.machine import versions
from ray_adaplr.storage.ownership import may_replace_card
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.run_reader import read_run


def summarise(
    plan: RunPlan, run: Run, inferred: Inferred, scores: dict[str, Any] | None, warnings: list[str], figures: str
) -> None:
    """Write the last files of a run that is refined and distilled; `scores` are there only with ground truth."""
    known = label_summary(plan, run)
    summary = {
        **known,
        "changed_before_refinement": float((inferred.labels != inferred.start_labels).mean()),
        "target": scores and scores["accuracy"],
        **({"target_per_domain": scores["per_domain"]} if scores else {}),
        "shift": inferred.shift,
        "spared": inferred.spared,
        "remarks": inferred.remarks,
        "warnings": [*warnings, *replace(read_run(run.folder.uri), summary=known).warnings],
        "seconds": {stage: round(value, 2) for stage, value in run.seconds().items()},
        "seed": plan.config.seed,
        "versions": versions(),
        "command": run.folder.read_json(ORIGIN)["command"],
    }
    if run.done(SHIPPED):
        summary["shipped"] = run.folder.read_json(SHIPPED)
    run.folder.write_json(SUMMARY, summary)
    write_card(plan, run)
    write_page(run, figures)
    if run.folder.is_local:
        write_outcome(run.folder, plan.config.model_dump(), summary)


def label_summary(plan: RunPlan, run: Run) -> dict[str, Any]:
    """What became of the labels, by ground truth where the store has it."""
    table, truth = run.read_labels(), plan.store.ground_truth()
    first, refined = table["initial_label"].to_numpy(), table["refined_label"].to_numpy()
    sure, changed = table["high_confidence"].to_numpy(), first != refined
    known: dict[str, Any] = dict.fromkeys(("inferred", "refined", "noise_before", "noise_after", "hcs_noise"))
    right = {} if truth is None else {"inferred": first == truth, "refined": refined == truth}
    for stage, noise in zip(right, ("noise_before", "noise_after")):
        known[noise] = float((~right[stage]).mean())
        known[stage] = 1 - known[noise]
    if right and sure.any():
        known["hcs_noise"] = float((~right["refined"])[sure].mean())

    def about(rows: np.ndarray) -> dict[str, float]:  # each of several targets: the whole hides a poor one
        found = {"changed_share": changed, "hcs_share": sure, **right}
        return {"num_images": int(rows.sum()), **{name: float(each[rows].mean()) for name, each in found.items()}}

    return {
        **known,
        "changed_share": float(changed.mean()),
        "hcs_share": float(sure.mean()),
        "labels_per_domain": {name: about(plan.store.domain_index == k) for k, name in enumerate(plan.store.domains)},
        "num_images": len(plan.store),
        "num_classes": plan.spec.num_classes,
        "classes": plan.classes,
    }


def write_card(plan: RunPlan, run: Run) -> None:
    """Write the model card beside the target model, unless somebody has put one of their own there."""
    if may_replace_card(run.folder, MODEL_CARD):
        run.folder.write(MODEL_CARD, model_card(read_run(run.folder.uri), plan.spec, plan.store.domains))


def write_missing_pages(plan: RunPlan, run: Run) -> None:
    """The pages of a run that was killed after its summary."""
    if not run.done(MODEL_CARD):
        write_card(plan, run)
    if not run.done(REPORT):
        write_page(run)


def draw_figures(plan: RunPlan, run: Run) -> str:
    """The figures of report.html; once labels are refined, nothing changes them any more."""
    from ray_adaplr.report.page import figures_section  # brings in matplotlib, which nothing else here needs

    return figures_section(replace(read_run(run.folder.uri), summary=label_summary(plan, run)))


def write_page(run: Run, figures: str | None = None) -> None:
    """Write report.html into the run's folder, wherever that is; figures are drawn unless they are given."""
    from ray_adaplr.report.page import report_page

    run.folder.write(REPORT, report_page(run.folder.uri, figures))


def ship_best_labels(state: RefineState, warmup: int, start_labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Put the best epoch's labels in the place of the last ones; returns their confidence [n], and what was chosen.

    The state is at the end of refinement, with the best epoch's labels kept. Epochs of the warm-up do not count;
    refinement began with `start_labels`, [n].
    """
    assert state.best_labels is not None
    assert state.best_confidence is not None
    best, last = best_epoch(state.judged, warmup), state.epoch - 1
    scores = {line["epoch"]: line[DEFAULT_SCORE] for line in state.judged}
    why = f"{DEFAULT_SCORE} is best there"
    if best != last:
        why = f"{DEFAULT_SCORE} is {scores[best]:.3f} there and {scores[last]:.3f} in the last epoch, {last + 1}"
    later = state.last_changed > best  # when they last changed before that epoch is no longer known
    touched = torch.where(state.best_labels != start_labels, best, -1).int()
    state.last_changed = torch.where(later, touched, state.last_changed)
    state.labels = state.best_labels
    stop = state.stopped or f"all {state.epoch} epochs were run"
    choice = {"stop": stop, "epoch": best, "labels": f"epoch {best + 1}", "why_labels": why}
    return state.best_confidence, choice


def score_models(models: dict[str, Classifier], store_paths: list[str], device: str) -> dict[str, float]:
    """The score of each model on the clean target images, and of `ensemble`, the members' summed logits."""
    store, device = ImageStore.open(*store_paths), usable_device(device)
    logits = {
        name: torch.from_numpy(predict_logits(model, store.read, np.arange(len(store)), device))
        for name, model in models.items()
    }
    members = [value for name, value in logits.items() if name.startswith(f"{ENSEMBLE}/")]
    if len(members) > 1:
        logits[ENSEMBLE] = torch.stack(members).mean(0)
    return {name: label_free(value.softmax(1))[DEFAULT_SCORE] for name, value in logits.items()}


def choose_model(scores: dict[str, float]) -> dict[str, Any]:
    """The model with the best score; a tie goes to the first, the target model, which is one network."""
    chosen = max(scores, key=lambda name: scores[name])
    others = ", ".join(f"{name} {score:.3f}" for name, score in scores.items() if name != chosen)
    why = f"it has the best {DEFAULT_SCORE} on the target images, {scores[chosen]:.3f} ({others})"
    return {"model": chosen, "why_model": why, "scores": scores}
