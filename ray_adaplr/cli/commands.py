"""What each command does, once its options are read. Heavy imports are inside, so that `--help` answers at once."""

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

from ray_adaplr.errors import InputError


def settings(options: Namespace) -> tuple[Any, Any, Any]:
    """Config, scaling and progress as the training options say."""
    from ray_adaplr.config import Config, parse_setting
    from ray_adaplr.data.progress import Progress

    changes = dict(parse_setting(text) for text in options.set)
    if options.seed is not None:
        changes["seed"] = options.seed
    if getattr(options, "stop", None):
        changes["stop"] = options.stop
    config = Config.load(options.preset, options.config, changes)
    return config, scaling_of(options), Progress(quiet=options.quiet)


def scaling_of(options: Namespace) -> Any:
    """Where to run, as the training options say."""
    from ray_adaplr.config import ScalingConfig
    from ray_adaplr.errors import checked_model

    told = {name: getattr(options, name) for name in ScalingConfig.model_fields}
    return checked_model(ScalingConfig, {name: value for name, value in told.items() if value is not None})


def read_lines(file: str | None) -> list[str] | None:
    """The lines of a class list."""
    if file is None:
        return None
    try:
        return [line.strip() for line in Path(file).read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the class list {file}: {error}") from error


def demo(options: Namespace) -> None:
    """Prepare digits, train a source, adapt it."""
    from ray_adaplr.cli.demo import run_demo

    if options.source == options.target:
        raise InputError(f"source and target are both '{options.source}'; choose two domains")
    config, scaling, progress = settings(options)
    result = run_demo(
        options.out, options.source, options.target, config, scaling, force=options.force, command=options.command_line,
        progress=progress,
    )  # fmt: skip
    print_result(result, f"{options.source} -> {options.target}")


def prepare(options: Namespace) -> None:
    """Images into a store."""
    from ray_adaplr.data.ingest import prepare as ingest
    from ray_adaplr.data.options import PrepareOptions
    from ray_adaplr.data.progress import Progress

    chosen = {name: getattr(options, name) for name in PrepareOptions.model_fields}
    chosen["classes"] = read_lines(options.classes)
    progress = Progress()
    store = ingest(options.what, options.out, PrepareOptions.checked(**chosen), progress)
    progress.close()
    known = f"{len(store.classes)} classes" if store.classes else "no class names"
    print(f"{len(store):,} images of {'x'.join(map(str, store.image_shape))}, {known}: {options.out}")


def pretrain(options: Namespace) -> None:
    """A source model."""
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.stages.pretrain import SourcePlan
    from ray_adaplr.stages.pretrain import pretrain as train_source
    from ray_adaplr.storage.models import describe

    config, scaling, progress = settings(options)
    store = ImageStore.open(*options.data)
    height, width, channels = store.image_shape
    spec = describe(
        name=options.model, num_classes=max(2, len(store.classes)), width=options.width, normalize=options.normalize,
        channels=channels if options.model == "digit_cnn" else 3,
        image_size=(height, width), classes=tuple(store.classes),
    )  # fmt: skip
    train_source(SourcePlan(store, options.out, spec, config, scaling), force=options.force, progress=progress)
    print(f"source model: {options.out}")


def adapt(options: Namespace) -> None:
    """The stages of adaptation, up to the one that was asked for."""
    from ray_adaplr.data.given_labels import read_given_labels
    from ray_adaplr.data.open import as_store
    from ray_adaplr.data.options import PrepareOptions
    from ray_adaplr.stages.adapt import RunPlan
    from ray_adaplr.stages.adapt import adapt as run_stages
    from ray_adaplr.storage.models import load_model
    from ray_adaplr.storage.run import Run

    config, scaling, progress = settings(options)
    run = Run(options.out)
    run.check()
    earlier = run.origin()
    sources, targets = options.source or earlier.get("source"), options.target or earlier.get("target")
    if not sources or not targets:
        raise InputError(f"name the --{'source' if not sources else 'target'}; {options.out} holds no earlier run")
    models = [load_model(source, options.model, read_lines(options.classes)) for source in sources]
    images = PrepareOptions.checked(size=options.size, channels=options.channels, aspect=options.aspect)
    store = as_store(targets, options.out, images)
    spec = models[0].spec
    given = read_given_labels(options.labels, store, spec.num_classes, spec.classes) if options.labels else None
    result = run_stages(
        RunPlan(
            models, store, options.out, config, scaling, given=given, source_names=sources, command=options.command_line
        ),
        until=options.until,
        force=options.force,
        fork=options.fork,
        progress=progress,
    )
    if options.until == "distill":
        print_result(result, "result")
    else:
        print(f"{options.until} is done: {result.path}")


def tune(options: Namespace) -> None:
    """A sweep, new or resumed."""
    from ray_adaplr.config import Config
    from ray_adaplr.core.scores import DEFAULT_SCORE, LABEL_FREE
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.storage.folder import Folder
    from ray_adaplr.storage.layout import ORACLE, SWEEP
    from ray_adaplr.storage.models import load_model
    from ray_adaplr.sweep.trials import run_sweep

    config, scaling, progress = settings(options)
    if options.metric and options.metric not in LABEL_FREE:
        raise InputError(f"--metric {options.metric} is no label-free score; use one of {', '.join(LABEL_FREE)}, or "
                         "--oracle to judge by the ground truth")  # fmt: skip
    if options.trials is not None and options.trials < 1:
        raise InputError(f"--trials {options.trials} makes no sweep; give 1 or more")
    chosen = {"search": options.search, "trials": options.trials, "scheduler": options.scheduler,
              "metric": ORACLE if options.oracle else options.metric or DEFAULT_SCORE}  # fmt: skip
    if options.resume:  # all but where it runs is as it was
        if not Folder(options.out).exists(SWEEP):
            raise InputError(f"--resume: there is no sweep in {options.out}")
        earlier = Folder(options.out).read_json(SWEEP)
        config = Config.load_text(earlier["config"])
        options.space, options.source, options.target = earlier["space"], earlier["source"], earlier["target"]
        options.model, options.classes = earlier["model"], earlier["classes"]
        chosen = {name: earlier[name] for name in chosen}
    for name in ("space", "source", "target"):
        if not getattr(options, name):
            raise InputError(f"name the {'SPACE' if name == 'space' else '--' + name} of the sweep")
    if chosen["search"] == "random" and not chosen["trials"]:
        chosen["trials"] = 12
    models = [load_model(source, options.model, read_lines(options.classes)) for source in options.source]
    origin = {"source": options.source, "model": options.model, "classes": options.classes}
    best = run_sweep(
        models, ImageStore.open(*options.target), options.out, options.space, config, scaling, **chosen, origin=origin,
        resume=options.resume, force=options.force, quiet=options.quiet, say=progress.say, command=options.command_line,
    )  # fmt: skip
    print(f"\nbest by {chosen['metric']}: trial {best['trial']}, score {best['score']:.4f}")
    print(
        f"  report: {options.out}/sweep.html\n  ray-adaplr adapt --config {options.out}/best.toml --source … --target …"
    )


def print_result(result: Any, title: str) -> None:
    """The figures of a finished run."""
    summary = result.summary
    print(f"\n{title}: {summary['num_images']:,} images, {summary['num_classes']} classes, seed {summary['seed']}")
    if summary["inferred"] is not None:
        print("  ground truth (a diagnostic; it never trains)")
        print(f"    {'':10}{'accuracy':>9}{'noise':>9}")
        for row in ("inferred", "refined", "target"):
            print(f"    {row:10}{summary[row]:>9.3f}{1 - summary[row]:>9.3f}")
    print(f"  labels changed {summary['changed_share']:.1%}, high-confidence {summary['hcs_share']:.1%}")
    if shipped := summary.get("shipped"):
        print(f"  refinement ended: {shipped['stop']}")
        print(f"  labels of {shipped['labels']}: {shipped['why_labels']}")
        print(f"  ship {shipped['model']}: {shipped['why_model']}")
    for warning in summary["warnings"]:
        print(f"  WARNING: {warning}")
    print(f"  report: {result.path}/report.html")


def evaluate(options: Namespace) -> None:
    """Accuracy where the truth is known."""
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.stages import evaluate as stage
    from ray_adaplr.storage.models import load_model

    scores = stage.evaluate([load_model(model) for model in options.model], ImageStore.open(*options.data))
    if options.json:
        print(json.dumps(scores, indent=1))
        return
    print(f"accuracy {scores['accuracy']:.4f} on {scores['images']:,} images")
    for kind in ("per_domain", "per_class"):
        for name, value in scores[kind].items():
            print(f"  {name:20} {'-' if value is None else f'{value:.4f}'}")


def predict(options: Namespace) -> None:
    """Labels for any images."""
    import pyarrow.parquet as pq

    from ray_adaplr.stages import evaluate as stage
    from ray_adaplr.storage.models import load_model

    models = [load_model(model) for model in options.model]
    with stage.images_for(models, options.data, unlabelled=True) as images:
        table = stage.predict(models, images)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, options.out)
    print(f"{len(table):,} predictions: {options.out}")


def report(options: Namespace) -> None:
    """The page of a run, or of several."""
    from ray_adaplr.report.figures import save_figures
    from ray_adaplr.report.page import comparison_page, report_page
    from ray_adaplr.storage.folder import Folder
    from ray_adaplr.storage.run_reader import read_run

    if len(options.runs) == 1:
        page, out = report_page(options.runs[0]), options.out or f"{options.runs[0].rstrip('/')}/report.html"
    else:
        page, out = comparison_page(options.runs), options.out or "comparison.html"
    place, name = os.path.split(out)
    Folder(place or ".").write(name, page)
    print(f"report: {out}")
    if options.figures:
        files = save_figures([read_run(run) for run in options.runs], Path(options.figures))
        print(f"{len(files)} figures: {options.figures}")


def watch(options: Namespace) -> None:
    """A live view of a run."""
    from ray_adaplr.report import watch as view

    view.watch(options.run, once=options.once)
