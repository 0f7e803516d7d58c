"""The core is pure: it brings in neither Ray nor any other room of the house."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ray_adaplr
import ray_adaplr.core

CORE = sorted(Path(ray_adaplr.core.__file__).parent.glob("*.py"))
MODULES = [f"ray_adaplr.core.{module.name}" for module in pkgutil.iter_modules(ray_adaplr.core.__path__)]
ALLOWED = ("ray_adaplr.core", "ray_adaplr.errors")


def imported_by(file: Path) -> set[str]:
    """Dotted names that a file imports, also inside functions; `from a import b` counts as a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


def test_importing_the_whole_core_brings_in_no_ray() -> None:
    assert "ray_adaplr.core.learner" in MODULES
    code = f"import sys, {', '.join(MODULES)}\nassert 'ray' not in sys.modules\nassert 'pyarrow' not in sys.modules"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", CORE, ids=lambda file: file.stem)
def test_a_core_file_imports_nothing_from_the_other_rooms(file: Path) -> None:
    own = {name for name in imported_by(file) if name.split(".")[0] == "ray_adaplr"}
    assert {name for name in own if not name.startswith(ALLOWED)} == set()
    assert not any(name.split(".")[0] == "ray" for name in imported_by(file))


def test_draws_need_numpy_alone() -> None:
    names = {name.split(".")[0] for name in imported_by(Path(ray_adaplr.core.__file__).parent / "draws.py")}
    assert names - set(sys.stdlib_module_names) == {"numpy"}


def test_importing_the_package_is_cheap_and_its_names_come_on_first_use() -> None:
    code = "import sys, ray_adaplr\nassert 'torch' not in sys.modules\nassert 'ray' not in sys.modules"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'Adaplr'"):
        ray_adaplr.Adaplr  # noqa: B018
