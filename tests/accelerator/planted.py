"""Plants bugs that only show on an accelerator, one by one, in a copy of the package, and shows that each is found.

`python tests/accelerator/planted.py [NAME ...]` runs the in-process tests on the pretended accelerator for each bug and
once without any; exit code 1 when a bug is not found.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import build

REPOSITORY = build.HERE.parent.parent
TESTS = ["test_sim_training.py", "test_sim_pipeline.py"]


@dataclass(frozen=True)
class Bug:
    """One replacement in one file of the package."""

    file: str
    right: str
    wrong: str


BUGS = {
    "adam_counts_its_steps_on_the_cpu": Bug(
        "core/adam.py", "dtype=torch.float32, device=param.device)", "dtype=torch.float32)"
    ),
    "restored_moments_stay_on_the_cpu": Bug(
        "core/adam.py", "torch.empty_like(like, device=param.device).copy_(value)", "value.clone()"
    ),
    "the_sampling_grid_is_on_the_cpu": Bug(
        "core/augment.py", "torch.arange(size, device=device) * 2", "torch.arange(size) * 2"
    ),
    "the_blur_is_on_the_cpu": Bug("core/augment.py", "shifts.flatten(1).to(device)", "shifts.flatten(1)"),
    "residual_labels_stay_on_the_cpu": Bug(
        "core/objectives.py", "torch.from_numpy(targets.astype(np.int64)).to(device)", "torch.from_numpy(targets)"
    ),
    "images_stay_on_the_cpu": Bug(
        "core/feed.py",
        "_AHEAD:\n                    yield waiting.popleft().result().to(device, non_blocking=True)",
        "_AHEAD:\n                    yield waiting.popleft().result()",
    ),
    "every_step_reads_the_loss": Bug(
        "core/learner.py", "self._scaler.scale(loss).backward()", "loss.item(), self._scaler.scale(loss).backward()"
    ),
    "every_step_brings_its_logits_home": Bug(
        "core/learner.py", "self.model.spec.num_classes, device=self.device)", "self.model.spec.num_classes)"
    ),
    "a_snapshot_stays_on_the_device": Bug(
        "core/learner.py", 'value.detach().to("cpu", copy=True)', "value.detach().clone()"
    ),
    "normalisation_stays_on_the_cpu": Bug(
        "core/models.py",
        'self.register_buffer("mean", torch.tensor(spec.mean).view(1, -1, 1, 1), persistent=False)',
        "self.mean = torch.tensor(spec.mean).view(1, -1, 1, 1)",
    ),
    "a_source_on_the_device_stays_there": Bug(
        "stages/evaluate.py", "copy.deepcopy(model).cpu()", "copy.deepcopy(model)"
    ),
    "members_that_share_a_gpu_fill_it_with_images": Bug(
        "core/feed.py", "self.share * devices.free_memory(device)", "devices.free_memory(device)"
    ),
    "the_cpu_is_taken_instead_in_silence": Bug("core/devices.py", 'if wanted == "cpu":', 'if (wanted := "cpu"):'),
}


def tests_pass(bug: Bug | None, place: Path) -> bool:
    """Whether the tests pass with a bug in a copy of the repository."""
    with tempfile.TemporaryDirectory() as made:
        for name in ("ray_adaplr", "tune_spaces", "tests"):
            shutil.copytree(REPOSITORY / name, Path(made, name), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(REPOSITORY / "pyproject.toml", made)
        if bug:
            file = Path(made, "ray_adaplr", bug.file)
            file.write_text(file.read_text().replace(bug.right, bug.wrong))
        command = [sys.executable, "-m", "pytest", "-x", "-m", "accelerator", "-k", "not on_ray"]
        command += [str(Path("tests", "accelerator", name)) for name in TESTS]
        variables = {**build.environment(place), "PYTHONDONTWRITEBYTECODE": "1"}
        variables["PYTHONPATH"] = f"{place}:{made}"
        done = subprocess.run(command, cwd=made, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode in (0, 1), done.stdout + done.stderr  # 1: tests failed; others: they did not run
        return done.returncode == 0


def main() -> int:
    """Plant the named bugs, or all."""
    if why := build.missing():
        print(f"skipped: {why}")
        return 0
    place = build.built()
    names = sys.argv[1:] or ["none", *BUGS]
    missed = []
    for name in names:
        started = time.monotonic()
        passed = tests_pass(BUGS.get(name), place)
        print(f"{name:46} {'not found' if passed else 'found'}  {time.monotonic() - started:4.0f} s", flush=True)
        if passed != (name == "none"):
            missed.append(name)
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
