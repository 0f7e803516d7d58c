"""What a sweep is: its space, a file with a `space(num_classes)`; the trials that a search makes of it; its record.

The record lets `--resume` continue the same sweep. A space is known by its content. The code of a user's space is run
when the user names the file, never because a folder names one: the trials of a grid or a random search are in the
record. Those that Optuna makes up are in Ray Tune's pickles, which are read on the same condition.
"""

import hashlib
import itertools
import json
import os
import runpy
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict
from ray import tune
from ray.tune.search.variant_generator import generate_variants

import tune_spaces
from ray_adaplr.config import PRIORS, Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, checked_model, first_line, nearest
from ray_adaplr.stages.plan import check_settings
from ray_adaplr.storage.folder import Folder, absolute, is_uri
from ray_adaplr.storage.layout import SWEEP, SWEEP_FILES
from ray_adaplr.storage.models import fingerprint
from ray_adaplr.storage.ownership import check_ours, claim, clear, refuse_to_remove
from ray_adaplr.storage.secrets import redacted
from ray_adaplr.sweep.options import SweepJob, SweepOptions

Changes = dict[str, Any]  # settings of a trial that differ from the sweep's
SPACES = Path(tune_spaces.__path__[0])
_DRAWS = 200


def load_space(name: str, num_classes: int) -> dict[str, Any]:
    """The space of a shipped name (alpha, n_rl, n_e, joint, ablation) or of a Python file of the user's."""
    file = space_file(name)
    try:
        make_space = runpy.run_path(str(file)).get("space")
        if not callable(make_space):
            raise InputError(f"{file} has no function space(num_classes) that returns a Ray Tune space")
        space = make_space(num_classes)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code does
        raise InputError(f"{file} cannot be run: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(space, dict) or not space:
        raise InputError(f"{file}: space(num_classes) gives {space!r:.60}; it has to be a dict of settings")
    named = [setting for key in space for setting in str(key).split(",")]
    for setting in named:
        if setting not in Config.model_fields:
            raise InputError(f"{file}: there is no setting '{setting}'{nearest(setting, Config.model_fields)}")
        if named.count(setting) > 1:
            raise InputError(f"{file} names the setting '{setting}' twice; let one of the two be")
        if setting not in (Config.read_by("infer") | Config.read_by("refine")) - {"defaults"}:
            raise InputError(f"{file}: no trial would differ by {setting}; give it to all of them, --set {setting}=…")
    return space


def space_file(name: str) -> Path:
    """The file of a space; InputError when there is none."""
    file = Path(name) if name.endswith(".py") else SPACES / f"{name}.py"
    if not file.is_file():
        names = ", ".join(sorted(path.stem for path in SPACES.glob("[a-z]*.py")))
        raise InputError(f"there is no search space '{name}'; use one of {names}, or a Python file of your own")
    return file


def choose_trials(
    name: str, job: SweepJob, config: Config, num_classes: int
) -> tuple[dict[str, Any], list[Changes] | None]:
    """The space and its trials; None where Optuna makes them up: some are drawn to see whether such are feasible."""
    space, options = load_space(name, num_classes), job.options
    for key, value in space.items():  # a setting to which the user and the space give two values: one would be ignored
        for setting in key.split(","):
            if setting in job.said and value != job.said[setting]:
                sets = f"sets {setting}={value}" if isinstance(value, int | float | str) else f"sweeps {setting}"
                raise InputError(
                    f"the space {name} {sets}, so --set {setting}={job.said[setting]} has no effect; leave it out"
                )
    if options.search == "optuna":
        list_trials(space, SweepOptions(search="random"), config, num_classes)
        return space, None
    trials = options.trials or (12 if options.search == "random" else None)
    return space, list_trials(space, options.model_copy(update={"trials": trials}), config, num_classes)


def separate(sample: dict[str, Any], started_in: str) -> Changes:
    """A sample of a space as single settings: {"n_e,n_rl": (3, 2)} becomes {"n_e": 3, "n_rl": 2}.

    A prior's file is named so that it is found from any folder; the user named it from `started_in`.
    """
    changes: Changes = {}
    for key, value in sample.items():
        names = key.split(",")
        if len(names) > 1 and (not isinstance(value, list | tuple) or len(value) != len(names)):
            raise InputError(f"the space's '{key}' needs {len(names)} values in each cell, but one is {value!r:.60}")
        changes |= dict(zip(names, value)) if len(names) > 1 else {key: value}
    prior = changes.get("prior")
    if isinstance(prior, str) and prior not in ("", *PRIORS) and not is_uri(prior):
        changes["prior"] = os.path.normpath(os.path.join(started_in, os.path.expanduser(prior)))
    return changes


def with_changes(config: Config, changes: Changes, num_classes: int) -> Config:
    """The sweep's settings with a trial's changes, resolved; InputError when the trial is not feasible."""
    try:
        settings = {**config.model_dump(exclude_none=True), **changes}
        return Config.load(changes=settings).resolve(num_classes)
    except InputError as error:
        raise InputError(f"the trial {changes} is not feasible: {error}") from error


def list_trials(space: dict[str, Any], options: SweepOptions, config: Config, num_classes: int) -> list[Changes]:
    """All trials of a grid or a random search, each feasible and none twice.

    A grid has every cell (drawn once where the space has random parts); a random search draws `options.trials` cells.
    """
    random, count = np.random.RandomState(config.seed % 2**32), options.trials
    if options.search == "grid":
        variants = (spec for _, spec in generate_variants({"space": space}, random_state=random))
    else:
        variants = (
            next(spec for _, spec in generate_variants({"space": drawable(space)}, random_state=random))
            for _ in itertools.repeat(None, _DRAWS * (count or 1))
        )
    trials: dict[str, Changes] = {}
    try:
        for variant in variants:
            if count is not None and len(trials) == count:
                break
            drawn = separate(variant["space"], os.getcwd())
            changes = {name: v.item() if isinstance(v, np.generic) else v for name, v in drawn.items()}
            with_changes(config, changes, num_classes)
            trials.setdefault(json.dumps(changes, sort_keys=True), changes)
    except InputError:
        raise
    except Exception as error:  # Ray Tune raises many kinds over what is no space
        raise InputError(f"the search space is none for Ray Tune: {first_line(error)}") from error
    if not trials:
        raise InputError("the search space has no trial")
    if options.search == "random" and count is not None and len(trials) < count:
        raise InputError(f"the space has {len(trials)} different trials only; use --trials {len(trials)} or a grid")
    return list(trials.values())


def drawable(space: dict[str, Any]) -> dict[str, Any]:
    """The same space with every grid as a choice to draw from."""
    grids = {key for key, value in space.items() if isinstance(value, dict) and set(value) == {"grid_search"}}
    return {key: tune.choice(value["grid_search"]) if key in grids else value for key, value in space.items()}


class SweepRecord(BaseModel):
    """What all of a sweep's trials depend on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    space: str
    space_sha256: str
    source: list[str]
    model: str | None = None
    classes: str | None = None
    normalize: str | None = None
    target: list[str]
    target_fingerprint: str
    source_fingerprint: str
    options: SweepOptions
    config: str  # TOML
    listed: list[Changes] | None  # None where a searcher makes trials up
    command: str = ""
    precision: str | None = None  # what precision = "auto" came to, for all trials; not known before the first run


def content_hash(space: str) -> str:
    """What identifies a space: the hash of its file."""
    return hashlib.sha256(space_file(space).read_bytes()).hexdigest()


def plan_sweep(
    job: SweepJob, sources: list[Classifier], store: ImageStore, config: Config
) -> tuple[dict[str, Any], SweepRecord]:
    """The definition of the space (empty where the trials are listed in the record already), and the sweep's record."""
    num_classes, options = sources[0].spec.num_classes, job.options
    earlier = read_record(job.out) if job.resume else None
    space = may_run(job, earlier) if earlier else job.space
    if space is None:
        raise InputError("name the SPACE of the sweep")
    definition: dict[str, Any] = {}
    listed = earlier.listed if earlier else None
    if listed is None:
        definition, listed = choose_trials(space, job, config, num_classes)
    swept = {part for changes in [definition, *(listed or ())] for name in changes for part in name.split(",")}
    if options.scheduler == "asha" and "epochs" in swept:
        raise InputError(
            "--scheduler asha compares trials after the same number of epochs, and this space sweeps epochs; leave "
            "--scheduler out"
        )
    for changes in listed or ():
        check_settings(with_changes(config, changes, num_classes), num_classes)
    origin = {"source": [source.spec.name for source in sources], **job.origin}
    origin["source"] = [redacted(name) for name in origin["source"]]
    origin |= {name: redacted(said) for name, said in origin.items() if isinstance(said, str)}
    record = SweepRecord(
        space=os.path.abspath(space) if space.endswith(".py") else space,
        space_sha256=content_hash(space),
        target=[redacted(path) for path in store.paths],
        target_fingerprint=store.fingerprint,
        source_fingerprint=" ".join(map(fingerprint, sources)),
        options=options,
        config=config.to_toml(),
        listed=listed,
        command=job.command,
        **origin,
    )
    return definition, record


def read_record(out: str) -> SweepRecord:
    """The record of the sweep in a folder; InputError when there is none, or it is damaged."""
    folder = Folder(out)
    if not folder.exists(SWEEP):
        raise InputError(f"--resume: there is no sweep in {out}")
    try:
        return checked_model(SweepRecord, folder.read_json(SWEEP))
    except (ValueError, TypeError, OSError) as error:
        way_out = "start again with --force, or choose another --out"
        raise InputError(f"{SWEEP} in {out} is damaged or of another version; {way_out}") from error


def may_run(job: SweepJob, earlier: SweepRecord) -> str:
    """The space that a resumed sweep continues with; refused are another content, and code that nobody named here."""
    space = job.space or earlier.space
    if content_hash(space) != earlier.space_sha256:
        raise InputError(
            f"{space} is not the space that the sweep in {job.out} was started with; put that back, or choose "
            "another --out"
        )
    if earlier.listed is None and job.space is None:
        raise InputError(
            f"to continue, code in {space} or in {job.out} (Ray Tune's pickled records) has to run; if you trust it, "
            f"say so: tune {space} --resume --out {job.out}"
        )
    return space


def check_sweep(folder: Folder, job: SweepJob, record: SweepRecord) -> None:
    """Refuse a folder of somebody else's, one with another sweep, or going on without --resume; changes nothing."""
    check_ours(folder, "sweep")
    if job.force:
        refuse_to_remove(folder, SWEEP_FILES, {"--source": record.source})
    if job.force or not folder.exists(SWEEP):
        return
    if not job.resume:
        raise InputError(f"{folder.uri} holds a sweep; --resume continues with it, --force starts again")
    before, now = (_comparable(each) for each in (read_record(job.out), record))
    changed = [name for name in now if before[name] != now[name]]
    if changed:
        raise InputError(f"{folder.uri} holds a sweep with other {', '.join(changed)}; choose another --out")


def put_record(folder: Folder, job: SweepJob, record: SweepRecord) -> None:
    """Take a folder that is held for a sweep, or continue in it."""
    check_sweep(folder, job, record)  # once more: somebody may have been faster
    if job.force:
        clear(folder, SWEEP_FILES)
    claim(folder, "sweep")
    if not folder.exists(SWEEP):
        folder.write(SWEEP, record.model_dump_json(indent=1) + "\n")


def _comparable(record: SweepRecord) -> dict[str, Any]:
    content = json.loads(record.model_dump_json(exclude={"command", "space", "precision"}))
    return {**content, "source": [absolute(source) for source in record.source]}  # a place has several spellings
