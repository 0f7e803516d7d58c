"""The paper's protocol for one benchmark: which stores, which source model, which runs make a row of its tables."""

import itertools
from dataclasses import dataclass
from statistics import mean
from typing import Any

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import NORMALIZATIONS, Classifier, ModelSpec, build
from ray_adaplr.data.benchmarks import Benchmark
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, RunFailed
from ray_adaplr.paper.options import PaperJob, PaperOptions
from ray_adaplr.paper.published import Task, find_task, paper_row, paper_tasks
from ray_adaplr.paper.table import Figures, accuracies, rows_beside
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.plan import followed
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.storage.folder import joined
from ray_adaplr.storage.layout import LABELS, STORES, SUMMARY
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run

SCALED = ("epochs", "distill_epochs")  # the source model's epochs, of which the paper says nothing, stay whole


@dataclass(frozen=True)
class Protocol:
    """A benchmark's protocol, with what the command line changes of it."""

    benchmark: Benchmark
    options: PaperOptions
    job: PaperJob
    scaling: ScalingConfig
    progress: Progress

    def tasks(self) -> list[Task]:
        """The tasks that were asked for, or those of the paper whose data is there."""
        asked = [find_task(self.benchmark, name) for name in self.options.task]
        if self.options.late_fusion and (single := [task.name for task in asked if len(task.sources) == 1]):
            raise InputError(f"{single[0]} has one source, and --late-fusion is for several; leave one of the two out")
        chosen = []
        for task in asked or paper_tasks(self.benchmark):
            try:
                for domain in task.sources + task.targets:
                    self.benchmark.locate(domain, None, self.options.data or "")
                chosen.append(task)
            except InputError as error:
                if asked:
                    raise
                self.progress.say(f"left out {task.name}: {error}")
        if not chosen:
            raise InputError(f"there is no task of {self.benchmark.name} to run; name one with --task SOURCE-TARGET")
        return chosen

    def stores(self, task: Task) -> tuple[list[ImageStore], ImageStore, ImageStore]:
        """The labelled sources, the target, and the images to test on."""
        first, last = self.benchmark.splits[:1], self.benchmark.splits[-1:]
        sources = [self._store((domain,), first) for domain in task.sources]
        return sources, self._store(task.targets, first, self.options.images), self._store(task.targets, last)

    def rows(
        self, task: Task, labelled: list[ImageStore], target: ImageStore, test: ImageStore
    ) -> list[dict[str, Any]]:
        """The task's rows, once all its runs are done."""
        sources = self._sources(task, labelled)
        first = Config.load(self.options.preset or task.preset, changes=self.job.changes).seed
        seeds = range(first, first + self.options.seeds)
        figures, told, minutes = zip(*(self._adapt(task, seed, sources, target, test) for seed in seeds))
        config = followed(self._config(task, 0, sources[0], target), sources[0], target)  # as it was run
        about = {
            "task": task.name,
            "scenario": task.scenario,
            "preset": self.options.preset or task.preset,
            "scale": self.options.scale,
            "seeds": self.options.seeds,
            "model": sources[0].spec.name,
            "size": target.image_shape[0],
            "target_images": len(target),
            "test_images": len(test),
            "epochs": config.epochs,
            "distill_epochs": config.distill_epochs,
            "minutes": round(mean(minutes), 1),
            "late_fusion": len(sources) > 1,
            "remarks": [*self._departures(task), *itertools.chain(*told)],
        }
        return rows_beside(about, list(figures), paper_row(task.benchmark, task.name))

    def _store(self, domains: tuple[str, ...], split: list[str], images: int | None = None) -> ImageStore:
        drawn = {"scale": self.options.scale, "limit": images, "size": self.options.size}
        wanted = PrepareOptions(root=self.options.data, split=next(iter(split), None), **drawn)
        number = [] if images is None else [str(images)]
        paths = [joined(self.job.out, f"{STORES}/{'-'.join((domain, *split, *number))}") for domain in domains]
        for domain, path in zip(domains, paths):
            prepare(f"{self.benchmark.name}/{domain}", path, wanted)
        return ImageStore.open(*paths)

    def _config(self, task: Task, seed: int, model: Classifier, store: ImageStore) -> Config:
        """Settings with epochs at scale, of as many as model and images ask for; what else is left open stays open."""
        config = Config.load(self.options.preset or task.preset, changes={**self.job.changes, "seed": seed})
        if self.options.scale == 1:
            return config
        whole = followed(config, model, store)
        return config.model_copy(
            update={name: max(1, round(getattr(whole, name) * self.options.scale)) for name in SCALED}
        )

    def _sources(self, task: Task, labelled: list[ImageStore]) -> list[Classifier]:
        """One model of all sources together, or one of each."""
        spec = ModelSpec(
            name=self.benchmark.model,
            num_classes=len(self.benchmark.classes),
            classes=self.benchmark.classes,
            image_size=labelled[0].image_shape[:2],
            **NORMALIZATIONS["image" if self.benchmark.model == "digit_cnn" else "imagenet"],
        )
        start = build(spec)
        if self.options.backbone:
            weights = load_model(self.options.backbone, spec.name).network.state_dict()
            body = {name: tensor for name, tensor in weights.items() if not name.startswith(f"{start.head_name}.")}
            start.network.load_state_dict(body, strict=False)
        models = []
        for group in [[store] for store in labelled] if self.options.late_fusion else [labelled]:
            store = ImageStore.open(*(path for store in group for path in store.paths))
            place = self._place("sources", "+".join(store.domains))
            began_with = self.options.backbone or "scratch"
            plan = SourcePlan(store, place, start, self._config(task, 0, start, store), self.scaling, began_with)
            models.append(pretrain(plan, progress=self.progress))
        return models

    def _adapt(
        self, task: Task, seed: int, sources: list[Classifier], target: ImageStore, test: ImageStore
    ) -> tuple[Figures, list[str], float]:
        """One run, or what an earlier call has left of it: its figures, what is to be said of it, and minutes."""
        row, name = task.name + ("-fused" if len(sources) > 1 else ""), f"seed-{seed}"
        place = self._place(row, name)
        self.progress.say(f"{task.name}, seed {seed}, {len(target)} images")
        config, remarks = self._config(task, seed, sources[0], target), list[str]()

        def run(out: str, config: Config, fork: str | None = None) -> Run:
            origin = {"source_names": ["+".join(task.sources)], "command": self.job.command}
            plan = RunPlan(sources, target, out, config, self.scaling, **origin)  # type: ignore[arg-type]
            return adapt(plan, force=self.job.force, fork=fork, progress=self.progress).run

        try:
            done = run(place, config)
        except RunFailed:
            labels = Run(place).read_labels() if Run(place).done(LABELS) else None
            if labels is None or labels["high_confidence"].to_numpy().sum() > 1:
                raise
            # What a short run comes to; its row is to have a target model all the same.
            taught = config.model_copy(update={"distill_on": "all"})
            done = run(self._place(row, f"{name}-all-labels"), taught, fork=place)
            remarks = [f"no label is above alpha={config.alpha}, so the target model was trained on all labels"]
        summary = done.folder.read_json(SUMMARY)
        remarks += summary["warnings"]
        figures = accuracies(done, sources[0], target, test, per_class=self.benchmark.name == "visda")
        minutes = sum(summary["seconds"].values()) / 60
        return figures, [f"seed {seed}: {remark}" for remark in remarks], minutes

    def _place(self, *names: str) -> str:
        return joined(self.job.out, "/".join((self.options.preset or "paper", *names)))

    def _departures(self, task: Task) -> list[str]:
        """What makes the figures other than the paper's."""
        found = []
        if self.options.scale < 1:
            found.append(f"scale {self.options.scale:g}: this share of images and epochs; the source's stay whole")
        found += [f"at most {self.options.images} target images of each domain"] if self.options.images else []
        if self.options.preset:
            found.append(f"settings of the preset {self.options.preset}; the paper's are {task.preset}")
        found += [f"--set {name}={value}" for name, value in self.job.changes.items()]
        if self.options.size and self.options.size != self.benchmark.size:
            found.append(f"images of {self.options.size} pixels")
        if self.benchmark.model != "digit_cnn" and not self.options.backbone:
            found.append(
                f"the {self.benchmark.model} was trained from scratch; published figures start from weights of "
                "ImageNet, which --backbone FILE takes"
            )
        return found
