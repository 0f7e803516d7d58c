"""Builds the pretended accelerator with g++ and torch's headers, and runs the tests that need it.

`python tests/accelerator/build.py [pytest's options]`. The build takes half a minute to a minute and is kept in torch's
folder for extensions, by torch's version and the sources' content. Torch loads it where that folder is on the path,
as it loads every backend that an installed package names (the entry points `torch.backends`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "torch_sim"
ENTRY_POINT = "[torch.backends]\ntorch_sim = torch_sim:autoload\n"
METADATA = "Metadata-Version: 2.1\nName: torch-sim\nVersion: 0\n"


def missing() -> str:
    """Why it cannot be built here; empty where it can."""
    if sys.platform != "linux":
        return f"it is built on Linux only, not on {sys.platform}"
    if shutil.which("g++") is None:
        return "there is no g++"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "there are no headers of Python (Debian: python3-dev)"
    return ""


def built() -> Path:
    """The folder to put on the path; built first if there is none for this torch and these sources."""
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # this process only needs to know where torch is
    import torch

    del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    digest = hashlib.sha256(sys.version.encode())
    for source in sorted(SOURCES.glob("*.[cp]*")):
        digest.update(source.read_bytes())
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or "~/.cache/torch_extensions").expanduser()
    place = root / "ray_adaplr_sim" / f"torch-{torch.__version__}-{digest.hexdigest()[:12]}"
    if place.is_dir():
        return place
    print("building the pretended accelerator, which is done once for each version of torch", flush=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as made:
        package, information = Path(made, "torch_sim"), Path(made, "torch_sim-0.dist-info")
        package.mkdir()
        information.mkdir()
        shutil.copy(SOURCES / "__init__.py", package)
        Path(information, "METADATA").write_text(METADATA)
        Path(information, "entry_points.txt").write_text(ENTRY_POINT)
        _compile(Path(torch.__file__).parent, package / "_C.so")
        try:
            Path(made).rename(place)
        except OSError:  # somebody was faster
            assert place.is_dir()
        Path(made).mkdir(exist_ok=True)  # for the clean-up
    return place


def _compile(torch: Path, library: Path) -> None:
    headers = [torch / "include", torch / "include/torch/csrc/api/include", sysconfig.get_path("include")]
    libraries = ["torch_cpu", "torch", "torch_python", "c10"]
    command = ["g++", "-O0", "-w", "-std=c++20", "-fPIC", "-shared"]
    command += ["-DTORCH_EXTENSION_NAME=_C", "-DTORCH_API_INCLUDE_EXTENSION_H"]
    command += [f"-I{folder}" for folder in headers]
    command += [str(SOURCES / "sim.cpp"), "-o", str(library)]
    command += [f"-L{torch / 'lib'}", *(f"-l{name}" for name in libraries)]
    subprocess.run(command, check=True)


def environment(place: Path) -> dict[str, str]:
    """Variables for a process whose torch has the accelerator."""
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def main() -> int:
    """Build it if need be, and run the tests."""
    if why := missing():
        print(f"skipped: the tests on a pretended accelerator need to build it, and {why}")
        return 0
    command = [sys.executable, "-m", "pytest", "-m", "accelerator", str(HERE), *sys.argv[1:]]
    return subprocess.run(command, env=environment(built()), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
