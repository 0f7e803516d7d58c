"""THE schema of a run's folder: every file name in it, and the columns of its table of labels.

`run.py` writes by these names and `run_reader.py` reads by them; nothing else spells them out.
"""

CONFIG = "config.toml"  # all settings, resolved
ORIGIN = "run.json"  # sources, targets, classes, fingerprints, the command
METRICS = "metrics.jsonl"  # one line per epoch
INFERRED = "inferred.parquet"  # first labels
START_MODELS = "start_models"  # what the members start from, one folder per source
CHECKPOINTS = "checkpoints"
ENSEMBLE = "ensemble"  # the trained members, one folder each
LABELS = "labels.parquet"  # refined labels
SHIPPED = "shipped.json"  # what a run with stop = "auto" chose
TARGET_MODEL = "target_model"
SUMMARY = "summary.json"  # written last of the figures: a run with a summary is finished
REPORT = "report.html"
TENSORBOARD = "tensorboard"
LOCK = ".lock"
STORES = "stores"  # image stores that were made for this run
SOURCE = "source"  # the demo's source model

WRITTEN = (
    CONFIG,
    ORIGIN,
    METRICS,
    INFERRED,
    LABELS,
    SUMMARY,
    SHIPPED,
    REPORT,
    START_MODELS,
    ENSEMBLE,
    TARGET_MODEL,
    CHECKPOINTS,
    TENSORBOARD,
)  # what a run makes, and what starting again removes
INPUTS = {LOCK, STORES, SOURCE, INFERRED, START_MODELS, CHECKPOINTS}  # what may be there before the run

LABEL_COLUMNS = ("id", "initial_label", "refined_label", "confidence", "high_confidence", "last_changed_epoch")
