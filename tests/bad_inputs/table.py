"""Bad inputs, one line each: a command line, the files it needs, the exit code, and a fragment of the sentence.

In a command line {model} is a good model, {store} a good target, {here} the case's own folder with its files. Families
over settings and flags have one input for each kind of mistake that the field's type allows, never two of a kind.
"""

import io
import json
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

from PIL import Image
from pydantic import BaseModel

from ray_adaplr.cli.doctor import DoctorOptions
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.paper.options import PaperOptions
from ray_adaplr.sweep.options import SweepOptions


@dataclass(frozen=True)
class Case:
    """A bad input and what it gets."""

    line: str
    words: str  # in the sentence
    files: dict[str, bytes | str] = field(default_factory=dict)  # by name, in {here}
    code: int = 2


ADAPT = "adapt --source {model} --target {store} --out {here}/run --engine local"
TUNE = "tune {here}/space.py --source {model} --target {store} --out {here}/sweep --engine local"
NUMBERS = {
    int: ['"abc"', "2.5", "true", "[]", "{}", "1e400", "-9"],
    float: ['"abc"', "true", "[]", "{}", "NaN", "Infinity", "-9"],
}


def kinds_of(annotation: Any) -> list[Any]:
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in kinds_of(part)]
    if hasattr(annotation, "__metadata__"):
        return kinds_of(get_args(annotation)[0])
    return [annotation]


def mistakes(annotation: Any) -> list[str]:
    """Values in JSON that no field of this type takes."""
    kinds = kinds_of(annotation)
    kind = kinds[0]
    if get_origin(kind) is Literal:
        found = ['"nonsense"', "7", "true", "[]", "{}", '""']
    elif get_origin(kind) is tuple:
        found = ['"x"', "[true, 1]", '["a", "b"]', "{}", "[NaN, 1]", "-1"]
        found += ["[1]", "[1, 2, 3]", "[0, 1]", "[0.9, 0.5]"] if Ellipsis not in get_args(kind) else ["[]"]
    elif kind is bool:
        found = ['"perhaps"', "7", "[]", "{}", "0.5"]
    elif kind is str:
        found = ["7", "true", "[]", "{}", '""']
    else:
        found = NUMBERS[kind]
    return found if type(None) in kinds else [*found, "null"]


def wrong_settings() -> Iterator[Case]:
    for name, info in Config.model_fields.items():
        for value in mistakes(info.annotation):
            said = value if value.startswith(("[", "{")) else value.strip('"') or '""'
            yield Case(f"demo --out {{here}}/run --set '{name}={said}'", name)
    for text, words in (
        ("alpha", "key=value"),
        ("=3", "there is no setting ''"),
        ("member_weights=[1]", "member_weights has 1 values for n_e=3"),
        ("enlarge=[0.5]", "enlarge"),
        ("enlarge=[1.5, 9]", "enlarge"),
        ("alhpa=0.5", "did you mean 'alpha'"),
        ("Alpha=0.5", "did you mean 'alpha'"),
        ("alpha =0.5", "did you mean 'alpha'"),
        ("scaling.engine=ray", "there is no setting"),
        (f"seed={10**32}", "seed="),
        (f"seed={'9' * 5000}", "too long"),
        (f"n_a={10**6}", "n_a="),
        (f"n_e={10**6}", "n_e="),
        (f"epochs={10**9}", "epochs="),
        (f"batch_size={10**9}", "batch_size="),
        ("batch_size=1", "batch_size=1"),
        ("alpha=1", "alpha=1"),
        ("alpha=0", "alpha=0"),
        ("member_weights=[1,1]", "member_weights has 2 values"),
        ("n_rl=4", "use n_rl<=3"),
        ("n_rl=10", "use n_rl<=3"),
        ("crop=[0.5, 2]", "at most 1"),
        ("distill_crop=[0.5, 2]", "at most 1"),
        ("prior={here}/nowhere.txt", "prior="),
    ):
        yield Case(f"demo --engine local --out {{here}}/run --set '{text}'", words)


FLAG_MISTAKES = {int: ["abc", "2.5", "-7", "1e3x", ""], float: ["abc", "nan", "inf", "-7", ""]}


def wrong_flags() -> Iterator[Case]:
    for command, model, names in (
        ("demo --out {here}/run", ScalingConfig, None),
        ("prepare {here} --out {here}/store", PrepareOptions, None),
        (TUNE.replace("{here}/space.py", "alpha"), SweepOptions, None),
        ("paper digit5 --data {here}", PaperOptions, None),
        ("doctor", DoctorOptions, None),
        (ADAPT, PrepareOptions, ["size", "channels", "aspect"]),
    ):
        yield from _wrong_flags_of(command, model, names)


def _wrong_flags_of(command: str, model: type[BaseModel], names: list[str] | None) -> Iterator[Case]:
    for name in names or model.model_fields:
        kind = kinds_of(model.model_fields[name].annotation)[0]
        flag = "--" + name.replace("_", "-")
        if get_origin(kind) is Literal:
            values = ["nonsense", "7", ""]
        elif kind is bool:
            yield Case(f"{command} {flag}=yes", "ignored explicit argument")
            continue
        else:
            values = FLAG_MISTAKES.get(kind, [])
        for value in values:
            yield Case(f"{command} {flag}={value}" if value else f"{command} {flag}=''", flag)
        if kind in FLAG_MISTAKES or get_origin(kind) is Literal:
            yield Case(f"{command} {flag}", "expected one argument")


COMMAND_LINES = [
    Case("nonsense", "invalid choice"),
    Case("", "required"),
    Case("--nonsense", "required"),
    Case("demo", "--out"),
    Case("demo --out", "expected one argument"),
    Case("demo --out {here}/run --source mars", "invalid choice"),
    Case("demo --out {here}/run --target mars", "invalid choice"),
    Case("demo --out {here}/run --source mnist --target mnist", "choose two domains"),
    Case("demo --out {here}/run --nonsense", "unrecognized"),
    Case("demo --out {here}/run extra", "unrecognized"),
    Case("demo --out {here}/run --preset robus", "did you mean 'robust'"),
    Case("demo --out {here}/run --preset ''", "there is no preset"),
    Case("demo --out {here}/run --preset zzz", "known are robust"),
    Case("demo --out {here}/run --seed -1", "seed="),
    Case("demo --out {here}/run --seed x", "seed="),
    Case("demo --out {here}/run --seed 1.5", "seed="),
    Case("demo --out {here}/run --gpus-per-member 1.5", "several whole ones"),
    Case("demo --out {here}/run --gpus-per-member 1 --ranks-per-member 2", "a GPU of its own"),
    Case("demo --out {here}/run --ranks-per-member 4", "use --set batch_size=128, or at most 2 ranks"),
    Case("demo --out {here}/run --distill-workers 3", "leaves 21 images for each of 3 ranks"),
    Case("demo --out {here}/run --ranks-per-member 2 --engine local", "use engine=ray"),
    Case("demo --out {here}/run --wait-for-nodes 5", "cannot be counted"),
    Case("demo --engine local --out {here}/note.txt", "is a file", {"note.txt": "mine"}),
    Case("demo --engine local --out {here}/mine", "other files", {"mine/note.txt": "mine"}),
    Case("demo --engine local --force --out {here}/mine", "other files", {"mine/checkpoints/a": "mine"}),
    Case("prepare", "required"),
    Case("prepare {here}/no --out {here}/store", "no"),
    Case("prepare '' --out {here}/store", ""),
    Case("prepare {here}/empty --out {here}/store", "", {"empty/note.txt": "mine"}),
    Case("prepare pacs/photo --out {here}/store", "--root"),
    Case("prepare pacs/moon --root {here} --out {here}/store", "not a domain of pacs"),
    Case("prepare pacs/photo --root {here} --out {here}/store", "is not below"),
    Case("prepare {here} --out {here}/store --size 100000", "--size"),
    Case("prepare {here} --out {here}/store --workers 99999", "--workers"),
    Case("prepare {here} --out {here}/store --scale 2", "--scale"),
    Case("prepare {here} --out {here}/store --scale 0", "--scale"),
    Case("prepare {here} --out {here}/store --limit 0", "--limit"),
    Case("prepare {here} --out {here}/store --channels 2", "--channels"),
    Case("prepare {here} --out {here}/store --classes {here}/no.txt", "text file with one class name per line"),
    Case("pretrain --out {here}/m", "--data"),
    Case("pretrain --data {here} --out {here}/m", "store"),
    Case("pretrain --data {store} --data {here}/no --out {here}/m", "no"),
    Case("pretrain --data {store} --model nonsense --out {here}/m --engine local", "nonsense"),
    Case("pretrain --data {store} --model timm/nonsense --out {here}/m --engine local", "nonsense"),
    Case("pretrain --data {store} --normalize odd --out {here}/m --engine local", "odd"),
    Case("pretrain --data {store} --normalize 0.5/0 --out {here}/m --engine local", ""),
    Case("pretrain --data {store} --width 0 --out {here}/m --engine local", "width"),
    Case("pretrain --data {store} --width x --out {here}/m", "--width"),
    Case("pretrain --data {store} --out {here}/mine --engine local", "other files", {"mine/note.txt": "mine"}),
    Case("adapt --out {here}/run", "name the --source"),
    Case("adapt --source {model} --out {here}/run", "name the --target"),
    Case("adapt --source {here}/no --target {store} --out {here}/run", "no model at"),
    Case("adapt --source {store} --target {store} --out {here}/run", "model"),
    Case("adapt --source {model} --target {here}/no --out {here}/run --engine local", "no"),
    Case("adapt --source {model} --target {model} --out {here}/run --engine local", ""),
    Case(f"{ADAPT} --config {{here}}/no.toml", "no config file"),
    Case(f"{ADAPT} --config {{here}}", "cannot read the config file"),
    Case(f"{ADAPT} --labels {{here}}/no.csv", "no"),
    Case(f"{ADAPT} --guest-images {{store}}", "name one with --guest"),
    Case(f"{ADAPT} --guest {{model}} --guest-images {{here}}/nowhere", "nowhere"),
    Case(f"{ADAPT} --fork {{here}}/no", "--fork"),
    Case(f"{ADAPT} --stop never", "stop="),
    Case(f"{ADAPT} --normalize nonsense", "normalize="),
    Case(f"{ADAPT} --normalize 0.9/0.1", "leave --normalize out"),
    Case(f"{ADAPT} --classes {{here}}/no.txt", "class list"),
    Case("adapt --source {model} --target {store} --out /dev/null --engine local", "is a file"),
    Case(f"{ADAPT} --classes ok,defect", "text file with one class name per line"),
    Case("evaluate --model {model}", "--data"),
    Case("evaluate --data {store}", "--model"),
    Case("evaluate --model {here} --data {store}", "no model at"),
    Case("evaluate --model {model} --data {here}", "holds no image file"),
    Case("predict --model {model} --data {store}", "--out"),
    Case("predict --model {model} --data {here}/no --out {here}/p.parquet", "no"),
    Case("predict --model {model} --data {store} --out {here}/p.json", "Parquet or CSV"),
    Case("report", "required"),
    Case("report {here}", "holds no run", {"note.txt": "mine"}),
    Case("report {here}/no", "is not a folder"),
    Case("report {here}/note.txt", "is not a folder", {"note.txt": "mine"}),
    Case("watch {here}/no --once", "is not a folder"),
    Case("settings nonsense", "there is no setting"),
    Case("settings alpha --yaml", "unrecognized"),
    Case("doctor --address http://head:8265", "is a dashboard"),
    Case("doctor --gpus-per-member 2.5", "several whole ones"),
    Case("paper", "required"),
    Case("paper digit6 --data {here}", "is not a benchmark"),
    Case("paper digit5 --data {here} --task usps-moon", "not a domain of digit5"),
    Case("paper digit5 --data {here} --task mnist", "SOURCE-TARGET"),
    Case("paper digit5 --data {here} --task rest-rest", "SOURCE-TARGET"),
    Case("paper digit5 --data {here} --task mnist-mnist", "both sides"),
    Case("paper digit5 --data {here} --task usps-mnist", "is not below"),
    Case("paper digit5 --data {here} --scale 0", "--scale"),
    Case("paper digit5 --data {here} --scale 2", "--scale"),
    Case("submit", "name the command"),
    Case("submit -- nonsense", "invalid choice"),
    Case("submit -- demo", "--out"),
    Case("submit -- demo --out x --threads 0", "--threads"),
    Case("submit -- demo --out x --set alpha=7", "alpha=7"),
    Case("submit -- demo --out x --preset no", "there is no preset"),
    Case("submit --follow a -- demo --out x", "take no command"),
    Case("submit --stop a -- demo --out x", "take no command"),
    Case("submit --address foo -- doctor", "foo"),
    Case("submit --address foo list", "foo"),
    Case("submit --address foo --stop x", "foo"),
    Case("submit --address '' --address ftp://x -- doctor", "ftp"),
    Case("tune --out {here}/sweep", "name the SPACE"),
    Case("tune alpha --out {here}/sweep", "name the --source"),
    Case("tune alpha --source {model} --out {here}/sweep", "name the --target"),
    Case("tune alfa --source {model} --target {store} --out {here}/sweep", "no search space 'alfa'"),
    Case("tune {here}/no.py --source {model} --target {store} --out {here}/sweep", "no search space"),
    Case("tune alpha --metric noise --out {here}/sweep", "no label-free score"),
    Case("tune --resume --out {here}/sweep", "there is no sweep"),
    Case("tune alpha --set n_e=3 --source {model} --target {store} --out {here}/s --engine local", "leave it out"),
    Case("tune alpha --set alpha=0.7 --source {model} --target {store} --out {here}/s --engine local", "leave it out"),
    Case(
        "tune alpha --search random --trials 7 --source {model} --target {store} --out {here}/s", "6 different trials"
    ),
    Case("tune alpha --source {model} --target {store} --out {here}/mine", "other files", {"mine/trials/a": "mine"}),
    Case("tune alpha --force --source {model} --target {store} --out {here}/t", "other files", {"t/tune/a": "mine"}),
]

CONFIG_FILES = {
    "epochs: 3": "is not TOML",
    "epochs =": "is not TOML",
    "epochs = 3\nepochs = 4": "is not TOML",
    "[": "is not TOML",
    "epoch = 3": "did you mean 'epochs'",
    "[robust]\nepochs = 3": "there is no setting 'robust'",
    "epochs = 1979-05-27": "epochs=",
    "epochs = '3x'": "epochs=",
    "crop = [0.5]": "crop=",
    "alpha = nan": "alpha=",
    "seed = 99999999999999999999": "",
}
SPACES = {
    "": "has no function space",
    "space = 3": "has no function space",
    "def space(": "cannot be run: SyntaxError",
    "1/0": "cannot be run: ZeroDivisionError",
    "import nowhere_at_all": "cannot be run: ModuleNotFoundError",
    "raise SystemExit(3)": "cannot be run: SystemExit",
    "def space(): return {}": "cannot be run: TypeError",
    "def space(C): return C.x": "cannot be run: AttributeError",
    "def space(C): return {}": "it has to be a dict",
    "def space(C): return [1]": "it has to be a dict",
    "def space(C): return None": "it has to be a dict",
    "def space(C): return {'warm_up': 1}": "there is no setting 'warm_up'",
    "def space(C): return {3: 1}": "there is no setting '3'",
    "def space(C): return {'alpha': 7}": "is not feasible",
    "def space(C): return {'alpha': {'grid_search': [0.5, 2]}}": "is not feasible",
    "def space(C): return {'n_e,n_rl': {'grid_search': [(1,)]}}": "needs 2 values",
    "def space(C): return {'n_e,n_rl': 3}": "needs 2 values",
    "def space(C): return {'alpha': {'grid_search': []}}": "",
    "def space(C): return {'alpha': {'grid_search': 3}}": "",
    "def space(C): return {'alpha': object()}": "",
    "def space(C): return {'n_rl': 9, 'n_e': 3}": "is not feasible",
    "def space(C): return {'prior': '/none.txt'}": "prior=/none.txt",
}
SWEEP_RECORDS = ["", "{", "[]", "3", "null", "{}", '{"space": 3}', '{"space": "alpha"}', "\x00\x01"]
CLASS_LISTS = {"": "is empty", "\n\n": "is empty", "a\na\n": "twice", b"\xff\xfe\x00": "class list"}
PRIORS = ["", "a b c", "1 2 3", "inf\n" * 10, "nan\n" * 10, "-1\n" * 10, "0\n" * 10, "1 1\n" * 10, "1\n" * 9]
MODEL_FILES = {
    b"": "damaged",
    b"PK\x03\x04": "damaged",
    b"\x80\x04K\x01.": "damaged",
    b"{}": "code in a file is not run",
}
MODEL_JSONS = ["", "{", "[]", "null", "3", "{}", '{"num_classes": 1}', '{"num_classes": "x"}', '{"nonsense": 1}']
STORE_JSONS = ["", "{", "[]", "null", "3", "{}", '{"version": 99}', '"x"']
RUN_JSONS = ["", "{", "[]", "null", "3", '"x"']


LONG = "n" * 300  # most filesystems take 255 bytes
LONG_NAMES = [
    f"demo --out {LONG}",
    f"prepare {{here}} --out {{here}}/a/{LONG}/b",
    f"pretrain --data {{store}} --out {LONG}",
    f"pretrain --data {LONG} --out p",
    f"adapt --source {LONG} --target {{store}} --out run",
    f"adapt --source {{model}} --target {{store}} --out a/{LONG}/b",
    f"{ADAPT} --fork {LONG}",
    f"{ADAPT} --config {LONG}.toml",
    f"refine --out {LONG}",
    f"evaluate --model {LONG} --data {{store}}",
    f"predict --model {{model}} --data {{store}} --out {LONG}.parquet",
    f"report {LONG}",
    f"watch {LONG}",
    f"export {LONG} --to onnx --out e.onnx",
    f"tune alpha --source {{model}} --target {{store}} --out {LONG}",
    f"tune {LONG}.py --source {{model}} --target {{store}} --out sweep",
    f"tune --resume --out {LONG}",
]


def one_pixel() -> bytes:
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    return file.getvalue()


def wrong_files() -> Iterator[Case]:
    for line in LONG_NAMES:
        yield Case(line, "too long", {"a.png": one_pixel()} if line.startswith("prepare") else {})
    for text, words in CONFIG_FILES.items():
        yield Case(f"{ADAPT} --config {{here}}/c.toml", words, {"c.toml": text})
    yield Case(f"{ADAPT} --config {{here}}/c.toml", "is not TOML", {"c.toml": b"\xff\xfe"})
    for text, words in SPACES.items():
        yield Case(TUNE, words, {"space.py": text})
    sweeps_alpha = {"space.py": "def space(C):\n    return {'alpha': {'grid_search': [0.5, 0.9]}}\n"}
    yield Case(f"{TUNE} --set alpha=0.7", "sweeps alpha, so --set alpha=0.7 has no effect", sweeps_alpha)
    cut = {"l.csv.gz": b"\x1f\x8b\x08\x00\x00\x00"}
    yield Case("prepare {here}/l.csv.gz --out {here}/store", "cannot be unpacked with gzip", cut)
    yield Case(f"{ADAPT} --labels {{here}}/l.csv.gz", "cannot be unpacked with gzip", cut)
    for text in SWEEP_RECORDS:
        yield Case("tune --resume --out {here}/s", "is damaged", {"s/sweep.json": text})
    for content, words in CLASS_LISTS.items():
        yield Case("prepare {here} --out {here}/store --classes {here}/c.txt", words, {"c.txt": content})
    for text in PRIORS:
        yield Case(f"{ADAPT} --set prior={{here}}/p.txt", "prior=", {"p.txt": text})
    weights = "adapt --source {here}/w.pt --model resnet18 --target {store} --out {here}/run"
    for content, words in MODEL_FILES.items():
        yield Case(weights, words, {"w.pt": content})
        yield Case(weights.replace("w.pt", "w.safetensors"), "", {"w.safetensors": content})
    yield Case("evaluate --model {here}/w.pt --data {store}", "they are of: NAME=", {"w.pt": b"x"})
    for text in MODEL_JSONS:
        yield Case("evaluate --model {here}/m --data {store}", "", {"m/model.json": text})
    for text in STORE_JSONS:
        yield Case("evaluate --model {model} --data {here}/s", "", {"s/store.json": text})
    marker = {"r/.ray-adaplr.json": json.dumps({"kind": "run"})}
    for text in RUN_JSONS:
        run = "adapt --out {here}/r --engine local"
        yield Case(run, "", {**marker, "r/run.json": text, "r/config.toml": Config().to_toml()})


def all_cases() -> list[Case]:
    """The whole table."""
    return [*wrong_settings(), *wrong_flags(), *COMMAND_LINES, *wrong_files()]
