"""THE schema of a run's folder and of a sweep's: every file name in them, and the columns of the table of labels.

`run.py` writes by these names and `run_reader.py` reads by them; nothing else spells them out.
"""

import re

# Any folder that the product makes
MARKER = ".ray-adaplr.json"  # what it was made for
STORE_MANIFEST = "store.json"  # a store's own manifest names its files, and is its marker
BEING_WRITTEN = ".part-"  # begins the name of a file that is not whole yet
LOCK, LEASE = ".lock", ".lease"  # who works in it now, on a disk and in a bucket

# A model
WEIGHTS, SPEC = "model.safetensors", "model.json"

# A run
CONFIG = "config.toml"  # all settings, resolved
ORIGIN = "run.json"  # sources, targets, classes, fingerprints, the command, checksums, what it was computed with
METRICS = "metrics.jsonl"  # one line per epoch
INFERRED = "inferred.parquet"  # first labels
START_MODELS = "start_models"  # what the members start from, one folder per source
CHECKPOINTS = "checkpoints"  # where a run that was stopped goes on; gone when it has ended, unless kept
ENSEMBLE = "ensemble"  # the trained members, one folder each
LABELS = "labels.parquet"  # refined labels
LABELS_CSV = "labels.csv"  # the same for tools that read text; written first, so that labels.parquet is the sign
SHIPPED = "shipped.json"  # what a run with stop = "auto" chose
TARGET_MODEL = "target_model"  # the new model: safetensors and model.json
MODEL_CARD = "target_model/README.md"  # its model card, for people and for the Hugging Face hub
SUMMARY = "summary.json"  # written last of the figures: a run with a summary is finished
REPORT = "report.html"  # what changed, whether to trust it, and the changed images themselves
TENSORBOARD = "tensorboard"  # curves
TRACKED = "tracked.json"  # the run's ids in MLflow and W&B, by which a resumed run continues there
STORES = "stores"  # image stores that were made for this run

CARD_SIGN = "<!-- Written by ray-adaplr."  # a card without it is somebody else's, and stays

LABEL_COLUMNS = ("id", "initial_label", "refined_label", "confidence", "high_confidence", "last_changed_epoch")
MOST_CLASSES = 100_000  # five times ImageNet-21k; a list of class names of that length takes a few megabytes

PRECISION = "precision.json"  # in a source model's checkpoints/: what precision = "auto" came to
PLAN = "plan.json"  # likewise: the model that is being trained

# The files of a checkpoint, by epoch; and their patterns
MANIFEST_NAME, LABELS_NAME = "manifest-{:06d}.json", "labels-epoch-{:06d}.safetensors"
SLOT_NAME, MEMBER_NAME = "slot-epoch-{:06d}.safetensors", "member-{}-epoch-{:06d}.pt"
EPOCH_FILES = tuple(re.sub("{.*?}", "*", name) for name in (MANIFEST_NAME, LABELS_NAME, SLOT_NAME, MEMBER_NAME))
MANIFESTS = EPOCH_FILES[0]

# What is made, by pattern: what starting again removes. Anything else in a folder stays. A `*` stays within a folder.
_MODEL = f"{WEIGHTS} {SPEC}"
_INFER = "warm-start-*.pt features-*.pt"
_CHECKPOINT = f"{' '.join(EPOCH_FILES)} pretrain.pt distill.pt {_INFER} {PRECISION} {PLAN} {BEING_WRITTEN}*"


def _below(folder: str, names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for name in names.split())


INFER_FILES = _below(CHECKPOINTS, _INFER)  # what the first stage leaves until the first labels are written
TRAINING_FILES = _below(CHECKPOINTS, _CHECKPOINT)  # what training leaves until the model is written
SOURCE_MODEL_FILES = (*_MODEL.split(), ".part-*", *TRAINING_FILES)  # what `pretrain` makes
RUN_FILES = (
    *(CONFIG, ORIGIN, METRICS, INFERRED, LABELS, LABELS_CSV, SUMMARY, SHIPPED, REPORT, TRACKED, ".part-*"),
    *_below(TARGET_MODEL, _MODEL),
    MODEL_CARD,
    *_below(f"{START_MODELS}/[0-9]*", _MODEL),
    *_below(f"{ENSEMBLE}/[0-9]*", _MODEL),
    *TRAINING_FILES,
    *_below(TENSORBOARD, "events.out.tfevents.* */events.out.tfevents.*"),
)

# A sweep
SWEEP = "sweep.json"  # space, sources, targets, settings, the list of trials
TRIALS = "trials"  # one run per trial
STOPPED = "stopped_early.json"  # in a trial's folder: the scheduler ended it, and a resumed sweep lets it be
SHARED = "inferred"  # first labels that trials share, one run per group
TUNE = "tune"  # Ray Tune's own records
RESULTS = "results.parquet"  # one row per trial
BEST = "best.toml"  # the best trial's settings
RECORDS = (CONFIG, ORIGIN, SWEEP)  # what tells of the other files
SWEEP_PAGE = "sweep.html"  # all trials on one page
_OF_A_RUN = " ".join((*RUN_FILES, STOPPED, LOCK, MARKER))
_OF_TUNE = "tuner.pkl trainable.pkl .validate_storage_marker *_state-*.* *-state-*.* */params.* */result.json */error.*"
TUNE_FILES = _below(TUNE, _OF_TUNE)
SWEEP_FILES = (
    *(SWEEP, RESULTS, BEST, SWEEP_PAGE, ".part-*"),
    *_below(f"{TRIALS}/*", _OF_A_RUN),
    *_below(f"{SHARED}/*", _OF_A_RUN),
    *TUNE_FILES,
)

# In results.parquet, as `sweep/` writes it and `report/sweep.py` shows it
ORACLE = "oracle_accuracy"
DIAGNOSTIC = "diagnostic_oracle_accuracy"  # from ground truth: for the eye, never for a choice unless --oracle says so
DECIMALS = 4  # decimals shown of a score; scores equal to this many decimals tie
