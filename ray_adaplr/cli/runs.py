"""Commands that make things: prepare, pretrain, adapt and its stages one by one (infer, refine, distill), and demo."""

import shlex
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ray_adaplr.cli import options as flags
from ray_adaplr.data.options import DEMO_DOMAINS, PrepareOptions
from ray_adaplr.errors import InputError, counted
from ray_adaplr.storage.layout import TENSORBOARD
from ray_adaplr.storage.secrets import named_again, redacted

if TYPE_CHECKING:
    from ray_adaplr.core.models import Classifier
    from ray_adaplr.stages.result import Result

STAGES = (
    ("adapt", "Infer, refine and distill: from a source model and unlabelled images to a target model", "distill"),
    ("infer", "Label the target with the source model, and stop there", "infer"),
    ("refine", "Infer and refine the labels, without training the target model", "refine"),
    ("distill", "Train the target model, after what is missing of infer and refine", "distill"),
)


def add_parsers(commands: Any) -> None:
    """Register these commands."""
    parser = flags.add_command(commands, prepare)
    parser.add_argument("what", help="where the images are, hf:NAME[:split], or e.g. pacs/sketch with --root DATA")
    parser.add_argument("--out", required=True, metavar="STORE", help="the store's folder")
    flags.add_classes(parser, "default: the data's")
    flags.add_flags(parser, PrepareOptions, [name for name in PrepareOptions.model_fields if name != "classes"])

    parser = flags.add_command(commands, demo)
    parser.add_argument("--source", default="mnist", choices=DEMO_DOMAINS, help="where labels are (mnist)")
    parser.add_argument("--target", default="optdigits", choices=DEMO_DOMAINS, help="where to go (optdigits)")
    flags.add_training(parser)

    parser = flags.add_command(commands, pretrain)
    parser.add_argument("--data", action="append", required=True, metavar="STORE", help="labelled images; repeatable")
    name = "digit_cnn, a torchvision name, timm/NAME, or package.module:function (digit_cnn)"
    parser.add_argument("--model", default="digit_cnn", metavar="NAME", help=name)
    start = "weights to begin with, all but the head's: a file or model folder, or published (a known name's)"
    parser.add_argument("--start", metavar="WEIGHTS", help=start)
    parser.add_argument("--width", type=int, default=16, metavar="N", help="of the digit CNN (16)")
    _add_normalize(parser, "none, with --start what the architecture's published weights want")
    flags.add_training(parser)

    for command, purpose, until in STAGES:
        example = f"ray-adaplr {command} --source models/photo --target stores/sketch --out runs/sketch"
        stage = flags.add_command(commands, adapt, command, f"{purpose}; run it again to resume.\n\nExample: {example}")
        add_source_and_target(stage, "store or images")
        stage.add_argument("--fork", metavar="RUN", help="continue another run under new settings, in --out")
        stage.add_argument("--stop", metavar="{epochs,auto}", help="short for --set stop=…; auto: end when it stalls")
        guest = "a model, named as sources are, whose features vote on labels; repeatable"
        stage.add_argument("--guest", action="append", default=[], metavar="MODEL", help=guest)
        larger = "the target's images in more pixels, for guests to look at; default: --target, unless it is a store"
        stage.add_argument("--guest-images", action="append", default=[], metavar="STORE", help=larger)
        labels = "CSV with id,label: labels for all images are the start, labels for some images stay fixed"
        stage.add_argument("--labels", metavar="FILE", help=labels)
        of_images = ["size", "channels", "aspect", "unlabelled"]
        flags.add_flags(stage, PrepareOptions, of_images, "if --target is images", "as the model takes them")
        flags.add_track(stage)
        flags.add_training(stage)
        stage.set_defaults(until=until)


def add_source_and_target(parser: flags.Parser, target: str) -> None:
    """--source, --target, and what is to be said of a weights file."""
    model = "model folder (Hugging Face's too), weights file, NAME=FILE, torchvision or timm name, or hf:NAME"
    parser.add_argument("--source", action="append", metavar="MODEL", help=f"{model}; repeat to fuse several")
    parser.add_argument("--target", action="append", metavar="STORE", help=f"{target}; repeat to join several")
    parser.add_argument("--model", metavar="NAME", help="architecture of a weights file")
    flags.add_classes(parser, "for a weights file, in the order of its outputs")
    _add_normalize(parser, "what the architecture's published weights want")


def _add_normalize(parser: flags.Parser, otherwise: str) -> None:
    numbers = "numbers as mean/std, e.g. 0.5,0.5,0.5/0.2,0.2,0.2, or a Hugging Face preprocessor_config.json"
    text = f"none, half, imagenet, image, {numbers}; default: {otherwise}"
    parser.add_argument("--normalize", metavar="HOW", help=text)


def load_sources(names: list[str], options: Namespace, known: Sequence[dict[str, Any]] = ()) -> list["Classifier"]:
    """The source models, by what is said of their weights; where nothing is, by what a run knows of each.

    A run's folder may come from elsewhere, so a function that makes the network has to be named here again.
    """
    from ray_adaplr.integrations.sources import open_model

    said: dict[str, Any] = {"name": options.model, "classes": flags.read_classes(options.class_list)}
    if options.normalize:
        said["normalize"] = options.normalize
    known = [spec for spec in known if options.model == spec["name"] or not (options.model or ":" in spec["name"])]
    if len(known) == len(names) and not options.normalize and not options.class_list:
        return [open_model(name, **spec) for name, spec in zip(names, known)]
    return [open_model(name, **said) for name in names]


def prepare(options: Namespace) -> None:
    """Turn images into a store: a folder, a list, npz, Parquet, a Hugging Face dataset, or a benchmark's domain.

    Example: ray-adaplr prepare photos/ --size 224 --out stores/photos
    """
    from ray_adaplr.data import ingest
    from ray_adaplr.data.progress import Progress

    progress = Progress()
    wanted = flags.given(options, PrepareOptions, classes=flags.read_classes(options.class_list))
    with ExitStack() as meanwhile:
        if wanted.on_ray:
            from ray_adaplr.config import ScalingConfig
            from ray_adaplr.engine.placement import connected

            meanwhile.enter_context(connected(ScalingConfig()))
        store = ingest.prepare(options.what, options.out, wanted, progress)
    progress.close()
    print(redacted(f"{store.describe()}: {options.out}"))


def demo(options: Namespace) -> None:
    """Run the whole pipeline on real digits that come with pip packages: no download, no GPU.

    Example: ray-adaplr demo --out runs/demo
    """
    from ray_adaplr.cli.demo import run_demo

    if options.source == options.target:
        raise InputError(f"source and target are both '{options.source}'; choose two domains")
    domains = (options.source, options.target)
    result = run_demo(options.out, domains, flags.settings_of(options), options.force, options.command_line)
    print_result(result, f"{options.source} -> {options.target}")


def pretrain(options: Namespace) -> None:
    """Train a source model on labelled images; several stores are one source.

    Example: ray-adaplr pretrain --data stores/photo --model resnet18 --start published --out models/photo
    """
    from ray_adaplr.core.models import fields_of_factory, published_input
    from ray_adaplr.data.store import ImageStore
    from ray_adaplr.stages import pretrain as stage
    from ray_adaplr.storage.models import describe, load_start

    settings = flags.settings_of(options)
    store = ImageStore.open(*options.data)
    height, width, channels = store.image_shape
    fed = published_input(options.model) if options.start and not options.normalize else {}
    if ":" in options.model:
        made = fields_of_factory(options.model, channels=channels)
    else:
        made = {"num_classes": 2, "channels": channels if options.model == "digit_cnn" else 3}
    if len(store.classes) == 1:
        raise InputError(f"{options.data[0]} has one class, {store.classes[0]}; a source model needs two or more")
    if store.classes:
        made["num_classes"] = len(store.classes)
    spec = describe(
        name=options.model,
        **made,
        width=options.width,
        **(fed or {"normalize": options.normalize or "none"}),
        image_size=(height, width),
        aspect=store.aspect or "resize",
        classes=tuple(store.classes),
    )
    network = load_start(spec, options.start, settings.config.seed) if options.start else spec
    begun = options.start or "scratch"
    plan = stage.SourcePlan(store, options.out, network, settings.config, settings.scaling, begun)
    stage.pretrain(plan, force=options.force, progress=settings.progress)
    print(redacted(f"source model: {options.out}"))


def adapt(options: Namespace) -> None:
    """The stages of adaptation, up to the one that was asked for."""
    from ray_adaplr.data.labels import given_labels
    from ray_adaplr.integrations.sources import open_guest
    from ray_adaplr.integrations.targets import open_images
    from ray_adaplr.stages import adapt as stages
    from ray_adaplr.stages.plan import check_settings
    from ray_adaplr.storage.models import absolute_model_name
    from ray_adaplr.storage.run import Run

    settings, tracker = flags.settings_of(options), flags.tracker_of(options)
    run = Run(options.out)
    run.check()
    earlier = run.origin()
    sources, targets, known = _named_now_or_before(options, earlier)
    options.unlabelled = options.unlabelled or (not options.target and earlier.get("unlabelled")) or None
    models = load_sources(sources, options, known)
    spec = models[0].spec
    check_settings(settings.config, spec.num_classes)  # refused before images are read
    guests, wanted = [open_guest(guest) for guest in options.guest], flags.given(options, PrepareOptions)
    before = [] if options.target or not guests else named_again(earlier.get("guest_images", []), "guest-images")
    shown = options.guest_images or before or None
    store, guest_store = open_images(
        models, targets, options.out, wanted, settings.progress, guests, shown, options.force
    )
    plan = stages.RunPlan(
        models,
        store,
        options.out,
        settings.config,
        settings.scaling,
        given=given_labels(options.labels or None, store, spec.num_classes, spec.classes),
        source_names=[absolute_model_name(source) for source in sources],
        command=options.command_line,
        guests=guests,
        guest_store=guest_store,
        named=(sources, targets, options.labels, options.guest, shown),
    )
    result = stages.adapt(
        plan, until=options.until, force=options.force, fork=options.fork, progress=settings.progress, tracker=tracker
    )
    if options.until == "distill":
        print_result(result, "result")
    else:
        if options.until == "infer":
            print_inferred(result, settings.config.alpha)
        print(redacted(f"{options.until} is done: {result.path}"))


def _named_now_or_before(
    options: Namespace, earlier: dict[str, Any]
) -> tuple[list[str], list[str], Sequence[dict[str, Any]]]:
    """Sources and targets as they are named, else as an earlier run has them, with what it knows of its sources."""
    from ray_adaplr.core.models import OWN

    known = () if options.source else earlier.get("source_specs", ())
    sources = options.source or named_again(earlier.get("source", []), "source")
    targets = options.target or named_again(earlier.get("target", []), "target")
    if not sources or not targets:
        raise InputError(f"name the --{'source' if not sources else 'target'}; {options.out} holds no earlier run")
    for source, spec in zip(sources, known):
        if spec["name"] == OWN + source:  # of a class that only the user's program can make
            raise InputError(
                f"{options.out} was started in Python with a network of the class {source}; continue there, with the "
                "same fit(...), or start a run here with --source FOLDER --model package.module:function"
            )
    return sources, targets, known


def print_inferred(result: "Result", alpha: float) -> None:
    """What the source model makes of the target: how sure it is, how many images each class has, what to beware of."""
    import numpy as np

    found = result.run.read_inferred([result.like])
    print(f"\n{counted(len(found.labels), 'image')} labelled, mean confidence {found.confidence.mean():.3f}, ", end="")
    print(f"{(found.confidence > alpha).mean():.1%} above alpha={alpha:g}")
    if moved := int((found.start_labels != found.labels).sum()):
        what = "the warm start" if found.warm else "what came before refinement"
        print(f"  {what} changed {counted(moved, 'label')}")
    for remark in found.remarks:
        print(f"  {remark}")
    spec = result.like.spec
    counts = np.bincount(found.start_labels, minlength=spec.num_classes)
    for name, count in zip(spec.class_names, counts):
        print(f"  {name:20} {count:>8,}  {count / len(found.labels):6.1%}")
    for warning in found.warnings:
        print(f"  WARNING: {warning}")


def print_result(result: "Result", title: str) -> None:
    """The figures of a finished run."""
    from ray_adaplr.storage.run_reader import remarks_in, words_per_domain

    summary = result.summary
    print(f"\n{title}: {summary['num_images']:,} images, {summary['num_classes']} classes, seed {summary['seed']}")
    if summary["inferred"] is not None:
        print("  ground truth (a diagnostic; it never trains)")
        print(f"    {'':10}{'accuracy':>9}{'noise':>9}")
        for row in ("inferred", "refined", "target"):
            print(f"    {row:10}{summary[row]:>9.3f}{1 - summary[row]:>9.3f}")
    first = summary["changed_before_refinement"]
    before = f" ({first:.1%} before refinement)" if first else ""
    print(f"  labels changed {summary['changed_share']:.1%}{before}, high-confidence {summary['hcs_share']:.1%}")
    for name, words in words_per_domain(summary).items():
        print(f"    {name}: {words}")
    if shipped := summary.get("shipped"):
        print(f"  refinement ended: {shipped['stop']}")
        print(f"  labels of {shipped['labels']}: {shipped['why_labels']}")
        print(f"  ship {shipped['model']}: {shipped['why_model']}")
    for remark in remarks_in(summary):
        print(f"  {remark}")
    for warning in summary["warnings"]:
        print(f"  WARNING: {warning}")
    print(redacted(f"  report: {(result.run.folder / 'report.html').uri}"))
    if result.run.folder.is_local:
        print(f"  curves: tensorboard --logdir {shlex.quote((result.run.folder / TENSORBOARD).uri)}")
