"""The tables of README.md and docs/ from the committed results: `python -m benchmarks tables [--check]`.

What lies between `<!-- NAME -->` and `<!-- /NAME -->` in a Markdown file comes from a file in `results/` (see `BLOCKS`)
and is never typed in by hand.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

from benchmarks import RESULTS, ROOT, command_line
from benchmarks.ablations import STUDIES
from benchmarks.accuracy_table import LOOKS
from benchmarks.chaos.record import table as table_of_faults
from benchmarks.harness import Row, spread, table
from benchmarks.paper_tables import conditions, courses, rows_of_the_paper, task_name
from benchmarks.photos_table import by_seed, differences, photos
from benchmarks.precision import precision_table
from benchmarks.rounds import shown
from benchmarks.scores import judge, ranking
from benchmarks.shift import shifts
from ray_adaplr.core.scores import DEFAULT_SCORE

TASK_NAMES = {
    "usps-mnist": "USPS→MNIST",
    "mnist-usps": "MNIST→USPS",
    "svhn-mnist": "SVHN→MNIST",
    "mnist-mnistm": "MNIST→MNIST-M",
}


def demo(content: Row) -> str:
    """A line a seed."""
    head = ["seed", "inferred noise", "refined noise", "target model", "high-confidence labels / their noise"]
    return table(
        head,
        [
            [
                str(row["seed"]),
                f"{row['noise_before']:.3f}",
                f"{row['noise_after']:.3f}",
                f"{row['target']:.3f}",
                f"{row['hcs_share']:.2f} / {row['hcs_noise']:.3f}",
            ]
            for row in content["rows"]
        ],
    )


def results(content: Row) -> str:
    """The README's short table: four methods on the four digit tasks, means over the seeds."""
    names = {
        "source_only": "source model, not adapted",
        "shot": "SHOT",
        "adaplr": "**ray_adaplr**",
        "target_labels": "trained on the true labels",
    }

    def cell(task: str, method: str) -> str:
        found = [row["test_accuracy"] for row in content["rows"] if (row["task"], row["method"]) == (task, method)]
        return f"{mean(found):.3f}"

    head = ["test accuracy", *TASK_NAMES.values()]
    return table(head, [[name, *(cell(task, method) for task in TASK_NAMES)] for method, name in names.items()])


def accuracy(content: Row) -> str:
    """Test accuracy, a line a method; then what became of the labels, a line a task."""
    rows = content["rows"]
    tasks = [task for task in TASK_NAMES if any(row["task"] == task for row in rows)]

    def of(task: str, method: str, name: str, digits: int = 3) -> str:
        return spread([r[name] for r in rows if (r["task"], r["method"]) == (task, method)], digits)

    # The paper's preset at a tenth of its epochs says nothing of the paper; docs/evidence/paper-rule.md does.
    shown = {row["method"] for row in rows} - {"adaplr_paper"}
    methods = [method for method in LOOKS if method in shown]
    bold = {"adaplr": "**ray_adaplr**"}
    first = table(
        ["test accuracy, from the same source model", *(TASK_NAMES[task] for task in tasks)],
        [
            [bold.get(method, LOOKS[method][0]), *(of(task, method, "test_accuracy") for task in tasks)]
            for method in methods
        ],
    )
    second = table(
        ["ray_adaplr", "seeds", "inferred noise", "refined noise", "HCS share / noise", "CPU s", "SHOT's CPU s"],
        [
            [
                TASK_NAMES[task],
                str(sum((row["task"], row["method"]) == (task, "adaplr") for row in rows)),
                of(task, "adaplr", "inferred_noise"),
                of(task, "adaplr", "refined_noise"),
                f"{of(task, 'adaplr', 'hcs_share', 2)} / {of(task, 'adaplr', 'hcs_noise')}",
                of(task, "adaplr", "cpu_seconds", 0),
                of(task, "shot", "cpu_seconds", 0),
            ]
            for task in tasks
        ],
    )
    return f"{first}\n\n{second}"


def digits_without_shift(content: Row) -> str:
    """Test accuracy of the source model and ours, and the labels, a line a domain."""
    lines = []
    for task in dict.fromkeys(row["task"] for row in content["rows"]):
        ours = [row for row in content["rows"] if (row["task"], row["method"]) == (task, "adaplr")]
        names = ("source_test_accuracy", "test_accuracy", "inferred_noise", "refined_noise")
        source, target, before, after = (spread([row[name] for row in ours]) for name in names)
        lines.append([task_name(task), str(len(ours)), source, target, f"{before} → {after}"])
    return table(["no shift", "seeds", "source model", "**ray_adaplr**", "noise of the labels"], lines)


def ablations(content: Row) -> str:
    """What the watch does for the paper's rule, and an imbalanced target."""
    names = {"harm": "paper's rule, weak source model", "imbalance": "classes 8:1"}
    found = [row for row in content["rows"] if row["study"] in names]
    pairs = list(dict.fromkeys((row["study"], row["variant"]) for row in found))

    def cells(study: str, variant: str) -> list[str]:
        runs = [row for row in found if (row["study"], row["variant"]) == (study, variant)]
        noise = " → ".join(spread([row[name] for row in runs]) for name in ("inferred_noise", "refined_noise"))
        alarms = sum(any("dying out" in warning for warning in row["warnings"]) for row in runs)
        return [names[study], variant, str(len(runs)), noise, f"{alarms} of {len(runs)}"]

    return table(["USPS→MNIST", "variant", "seeds", "noise", "alarm"], [cells(*pair) for pair in pairs])


def figure_6(content: Row) -> str:
    """The paper's four ablations: a line per study, with the noise that each of its cells ends with."""
    lines = []
    for name in ("alpha", "n_rl", "n_e", "ensemble"):
        rows = [row for row in content["rows"] if row["study"] == name]
        before = {row["seed"]: row["inferred_noise"] for row in rows}
        after = {
            variant: [row["refined_noise"] for row in rows if row["variant"] == variant]
            for variant in STUDIES[name].variants
        }
        cells = ", ".join(f"{variant}: {mean(noise):.3f}" for variant, noise in after.items() if noise)
        deviations = [stdev(noise) for noise in after.values() if len(noise) > 1]
        largest = f"{max(deviations):.3f}" if deviations else "–"
        task = task_name(rows[0]["task"])
        lines.append([STUDIES[name].title, task, str(len(before)), spread([*before.values()]), cells, largest])
    head = ["study", "task", "seeds", "noise before", "noise after, by cell", "largest deviation over seeds"]
    return table(head, lines)


def speed(content: Row) -> str:
    """A line a ratio."""
    return table(
        ["ratio", "median (spread)", "goal"],
        [
            [
                row["name"],
                row["note"] if row["value"] is None else f"{row['value']:.2f} ({_range(row['spread'])})",
                f"{'≥' if row['higher_is_better'] else '≤'} {row['goal']:g}",
            ]
            for row in content["rows"]
        ],
    )


def epoch_profile(content: Row) -> str:
    """A line a part of an epoch."""
    ours, script = content["seconds"]["ours"], content["seconds"]["script"]
    parts = sorted(script, key=lambda part: (part == "rest", -script[part]))
    lines = [[part, f"{ours.get(part, 0.0):.3f}", f"{script[part]:.3f}"] for part in parts]
    total = [f"**{sum(each.values()):.3f}**" for each in (ours, script)]
    return table(["CPU seconds of an epoch of one member", "ours", "plain script"], [*lines, ["**all**", *total]])


def faults(content: Row) -> str:
    """One line per kind of fault."""
    return table_of_faults(content["faults"])


def schedules(content: Row) -> str:
    """A line per kind of what was disturbed."""
    drawn, disk, bucket = (content[name] for name in ("schedules", "operations_on_a_disk", "requests_to_a_bucket"))
    lines = [
        ["orders of faults", f"{drawn['schedules']:,}", f"{drawn['violations']} violations of a promise"],
        ["file operations on a disk", f"{disk['operations']:,}", f"{disk['different_bits']} with other bits"],
        ["requests to a bucket", f"{bucket['requests']:,}", f"{bucket['different_bits']} with other bits"],
    ]
    return table(["disturbed", "number", "found"], lines)


def label_free_scores(content: Row) -> str:
    """A line a score, best first."""
    verdict = judge(content["rows"])
    tasks = verdict["tasks"].values()
    return table(
        ["score", "rank correlation with accuracy", "regret of the pick, mean", "worst task"],
        [
            [
                f"**{name}** (default)" if name == DEFAULT_SCORE else name,
                f"{verdict['means'][name]['rank_correlation']:+.2f}",
                f"{verdict['means'][name]['regret']:.3f}",
                f"{max(task['scores'][name]['regret'] for task in tasks):.3f}",
            ]
            for name in ranking(verdict)
        ],
    )


def _range(ends: list[float] | float) -> str:
    return "–".join(f"{end:.2f}" for end in ends) if isinstance(ends, list) else f"{ends:.2f}"


def uneven(content: Row) -> str:
    """Two classes of different size: a line per split, with the default settings and with the preset `uneven`."""

    def noise(case: str) -> str:
        return ", ".join(f"{r['before']:.2f} → {r['after']:.2f}" for r in content["rows"] if r["case"] == case)

    splits = {"90 : 10": "two classes, 90 : 10", "96 : 4": "two classes, 96 : 4"}
    lines = [[split, noise(case), noise(f"{case}, preset uneven")] for split, case in splits.items()]
    return table(["two classes", "default settings", "`--preset uneven`"], lines)


BLOCKS: dict[str, tuple[str, Callable[[Row], str]]] = {  # by name: the file of results, and what makes the table of it
    "demo": ("demo.json", demo),
    "results": ("accuracy.json", results),
    "accuracy": ("accuracy.json", accuracy),
    "accuracy-large": ("accuracy-large.json", accuracy),
    "accuracy-no-shift": ("accuracy-no-shift.json", digits_without_shift),
    "uneven": ("alarms.json", uneven),
    "photos": ("photos.json", photos),
    "photos-differences": ("photos.json", differences),
    "photos-earlier-differences": ("photos-earlier.json", differences),
    "photos-600": ("photos-600.json", photos),
    "photos-600-differences": ("photos-600.json", differences),
    "photos-600-seeds": ("photos-600-seeds.json", photos),
    "photos-other": ("photos-other.json", photos),
    "photos-other-differences": ("photos-other.json", differences),
    "photos-whole-art": ("photos-whole-art.json", photos),
    "photos-2-classes": ("photos-2-classes.json", by_seed),
    "photos-3-classes": ("photos-3-classes.json", by_seed),
    "photos-seeds": ("photos-seeds.json", photos),
    "photos-seeds-differences": ("photos-seeds.json", differences),
    "photos-no-shift": ("photos-no-shift.json", photos),
    "ablations": ("ablations.json", ablations),
    "figure-6": ("ablations.json", figure_6),
    "scores": ("scores.json", label_free_scores),
    "speed": ("speed.json", speed),
    "epoch-profile": ("epoch_profile.json", epoch_profile),
    "precision": ("precision.json", precision_table),
    "conditions": ("conditions.json", conditions),
    "paper-curves": ("paper-curves.json", courses),
    "paper-rows": ("paper-digit5.json", rows_of_the_paper),
    "rounds": ("rounds.json", lambda content: shown(content["rows"])),
    "chaos": ("chaos.json", faults),
    "schedules": ("schedules.json", schedules),
    "shift": ("shift.json", shifts),
}


def markdown_files(root: Path = ROOT) -> list[Path]:
    """The files whose tables are kept up to date."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def filled(text: str) -> str:
    """A Markdown text with the content of every block replaced by what the results say now.

    A block whose file of results is not there yet stays as it is.
    """
    for name, (file, make) in BLOCKS.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if block.search(text) and (RESULTS / file).exists():
            made = make(json.loads((RESULTS / file).read_text()))
            text = block.sub(lambda found, made=made: f"{found[1]}{made}\n{found[2]}", text)  # type: ignore[misc]
    return text


def main(arguments: list[str] | None = None) -> int:
    """Fill the blocks; with `--check` only compare, and return 1 when a file is not up to date."""
    parser = command_line("tables", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a file is not up to date")
    options = parser.parse_args(arguments)
    texts = {file: file.read_text() for file in markdown_files()}
    stale = {file: filled(text) for file, text in texts.items() if filled(text) != text}
    for file, text in stale.items():
        name = file.relative_to(ROOT)
        if options.check:
            print(f"{name} is not up to date: run `make tables`")
        else:
            file.write_text(text)
            print(f"{name} is written")
    return int(options.check and bool(stale))
