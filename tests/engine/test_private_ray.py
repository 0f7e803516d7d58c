"""Ray's private parts: who touches them, and what another Ray is told."""

import ast
import re
from pathlib import Path

import pytest
import ray

import ray_adaplr
from ray_adaplr.engine.private_ray import NEWEST, OLDEST, private
from ray_adaplr.errors import InputError

PACKAGE = Path(ray_adaplr.__file__).parent


def private_imports(file: Path) -> list[str]:
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    return [name for name in found if re.fullmatch(r"ray(\.\w+)*\._\w+(\.\w+)*", name)]


def test_nobody_imports_private_parts_of_ray() -> None:
    found = {name for file in PACKAGE.rglob("*.py") for name in private_imports(file)}
    assert found <= {"ray.__version__"}


def test_every_private_name_is_there_and_a_missing_one_is_told_with_the_way_out() -> None:
    asked = 0
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "private":
                module, name = (ast.literal_eval(argument) for argument in node.args)
                private(module, name)
                asked += 1
    assert asked >= 6
    with pytest.raises(InputError, match=r"has no ray\._private\.worker\.nonsense, .* install the last: pip install"):
        private("ray._private.worker", "nonsense")
    with pytest.raises(InputError, match=r"has no ray\._nowhere\.x"):
        private("ray._nowhere", "x")


def test_the_rays_that_are_known_are_those_that_are_required_tested_and_told() -> None:
    project, pages = (PACKAGE.parent / "pyproject.toml").read_text(), PACKAGE.parent / "docs/how-to/clusters.md"
    assert f'"ray[default,train,tune]>={OLDEST}"' in project
    assert f'["ray[serve]>={NEWEST}"]' in project
    assert f'ray: ["{OLDEST}.*", "{NEWEST}.*"]' in (PACKAGE.parent / ".github/workflows/ci.yml").read_text()
    assert f"Ray {OLDEST} to {NEWEST}" in pages.read_text()
    assert minor(OLDEST) <= minor(ray.__version__)


def minor(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
