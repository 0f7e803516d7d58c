"""What a finished run came to: summary.json, the model card, report.html and TensorBoard's table of settings."""

from dataclasses import dataclass, replace
from typing import Any

from ray_adaplr.report.card import model_card
from ray_adaplr.report.tensorboard import write_outcome
from ray_adaplr.stages.plan import RunPlan
from ray_adaplr.storage.layout import MODEL_CARD, ORIGIN, REPORT, SHIPPED, SUMMARY
from ray_adaplr.storage.ownership import may_replace_card
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.run_reader import read_run
from ray_adaplr.storage.versions import versions


@dataclass(frozen=True)
class Ending:
    """What the last stages came to."""

    scores: dict[str, Any] | None  # the target model's, where the store has ground truth
    warnings: list[str]  # what the start had to say
    seconds: dict[str, float]  # by stage
    figures: str  # the report's, by `draw_figures`
    guests: list[str]  # what became of each guest


def summarise(plan: RunPlan, run: Run, ending: Ending) -> None:
    """Write the last files of a run that is refined and distilled; accuracy only where there is ground truth."""
    known = label_summary(plan, run)
    summary = {
        **known,
        "target": ending.scores and ending.scores["accuracy"],
        **({"target_per_domain": ending.scores["per_domain"]} if ending.scores else {}),
        **({"guests": ending.guests} if ending.guests else {}),
        "warnings": [*ending.warnings, *replace(read_run(run.folder.uri), summary=known).warnings],
        "seconds": {stage: round(value, 2) for stage, value in ending.seconds.items()},
        "seed": plan.config.seed,
        "versions": versions(),
        "command": run.folder.read_json(ORIGIN)["command"],
    }
    if run.done(SHIPPED):
        summary["shipped"] = run.folder.read_json(SHIPPED)
    run.folder.write_json(SUMMARY, summary)
    write_card(plan, run)
    write_page(run, ending.figures)
    if run.folder.is_local:
        write_outcome(run.folder, plan.config.model_dump(), summary)


def label_summary(plan: RunPlan, run: Run) -> dict[str, Any]:
    """What became of the labels, by ground truth where the store has it."""
    table, truth = run.read_labels(), plan.store.ground_truth()
    first, refined = table["initial_label"].to_numpy(), table["refined_label"].to_numpy()
    sure = table["high_confidence"].to_numpy()
    known: dict[str, Any] = dict.fromkeys(("inferred", "refined", "noise_before", "noise_after", "hcs_noise"))
    if truth is not None:
        before, after = float((first != truth).mean()), float((refined != truth).mean())
        known = {
            "inferred": 1 - before,
            "refined": 1 - after,
            "noise_before": before,
            "noise_after": after,
            "hcs_noise": float((refined != truth)[sure].mean()) if sure.any() else None,
        }
    return {
        **known,
        "changed_share": float((first != refined).mean()),
        "hcs_share": float(sure.mean()),
        "num_images": len(plan.store),
        "num_classes": plan.spec.num_classes,
        "classes": plan.classes,
    }


def write_card(plan: RunPlan, run: Run) -> None:
    """Write the model card beside the target model, unless somebody has put one of their own there."""
    if may_replace_card(run.folder, MODEL_CARD):
        run.folder.write(MODEL_CARD, model_card(read_run(run.folder.uri), plan.spec, plan.store.domains))


def write_missing_pages(plan: RunPlan, run: Run) -> None:
    """The pages of a run that was killed after its summary, or that a version without a card made."""
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
