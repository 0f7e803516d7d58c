"""`python -m benchmarks NAME [options]` runs one benchmark; without a name it lists them."""

import importlib
import sys

COMMANDS = {
    "demo": "the demo on three seeds",
    "accuracy": "four digit tasks, all methods, three seeds (--quick: minutes; --large: the paper's protocol)",
    "precision": "the digit tasks in fp32 and in bf16, which is had by rounding on any CPU",
    "photos": "PACS with pretrained networks: default settings, with and without a guest, and SHOT",
    "shift": "how far images lie from those that a source model knows: is there a shift?",
    "compare": "SHOT, AaD and AdaPLR on your own store, from your own source model",
    "ablations": "the paper's figure 6 and the guards",
    "conditions": "what the paper's rule needs: its preset with one thing changed at a time, beside its figure 3",
    "noise_types": "symmetric, asymmetric and shift noise: classic NL against NEL (the paper's appendix)",
    "alarms": "where the signs of harm fire rightly and wrongly",
    "target_models": "ways to the target model from the same refined labels",
    "scores": "which label-free score picks the best of random trials",
    "rounds": "a run's target model as the source of the next run",
    "stop_auto": "`adapt --stop auto` against all epochs",
    "sweep_resume": "a sweep that is killed and resumed, against one left alone",
    "bits": "digests of a small whole run (--against COMMIT: the same bits before and after?)",
    "chaos": "faults in real runs: each must end with the bits of an undisturbed run",
    "speed": "ratios of things measured side by side (--check: the quick rows, fails when one got worse)",
    "epoch_profile": "what an epoch of a member consists of, ours and the plain script's",
    "cost_model": "the parts of an epoch, and what they predict for GPUs",
    "prepare_speed": "how well `prepare` uses the cores",
    "prepare_on_ray": "`prepare --on-ray` by Ray tasks, as it is, and by Ray Data",
    "plain_pytorch": "the method as a plain script, the yardstick of `speed`",
    "pictures": "the docs' pictures of a run's report",
    "rendered_digits": "digits rendered from fonts, a stand-in for Synthetic Digits in `ray-adaplr paper digit5`",
    "paper_curves": "gamma and noise by epoch of a run of `ray-adaplr paper`, finished or not",
    "photos_table": "the picture of `photos`",
    "paper_tables": "the picture of the page 'When the published rule works'",
    "tables": "write the results into the tables of README.md and docs/ (--check: only compare)",
}


def listing() -> str:
    """One line per benchmark."""
    lines = [f"  {name:15} {about}" for name, about in COMMANDS.items()]
    return "\n".join(["usage: python -m benchmarks NAME [options]", "", *lines])


def main(words: list[str]) -> int | str | None:
    """Run the benchmark that the first word names with the others as its options; returns the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(listing())
        return 0
    name, *options = words
    if name not in COMMANDS:
        print(f"{name!r} is no benchmark\n\n{listing()}", file=sys.stderr)
        return 2
    return importlib.import_module(f"benchmarks.{name}").main(options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
