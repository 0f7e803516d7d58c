"""The rooms of the house: who may import whom, and how large things may grow.

A lazy import inside a function and one under TYPE_CHECKING count like any other.
"""

import ast
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ray_adaplr
import ray_adaplr.core

PACKAGE = Path(ray_adaplr.__file__).parent
PRODUCT = sorted([*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "tune_spaces").rglob("*.py")])
TOP_LEVEL = {"__init__", "__main__", "api", "config", "errors"}

# From the bottom up: each room may import those before it, and itself.
LADDER = ("errors", "core", "config", "storage", "data", "engine", "stages")
MAY_IMPORT = {room: set(LADDER[:i]) for i, room in enumerate(LADDER)}
MAY_IMPORT["report"] = {"errors", "core", "config", "storage", "data"}
MAY_IMPORT["stages"] |= {"report"}
MAY_IMPORT["integrations"] = set(LADDER)
MAY_IMPORT["paper"] = {*LADDER, "report"}
MAY_IMPORT["sweep"] = {*LADDER, "report", "tune_spaces"}
MAY_IMPORT["api"] = {*LADDER, "report", "sweep", "paper", "integrations"}
MAY_IMPORT["cli"] = {*LADDER, "report", "sweep", "paper", "integrations", "api", "__init__", "tune_spaces"}
MAY_IMPORT["__init__"] = {"api", "core"}
MAY_IMPORT["__main__"] = {"cli"}
MAY_IMPORT["tune_spaces"] = set()


SHOWN_BY_HELP = {"ray_adaplr.api.AdaPLR.fit"}  # users read its signature: what it takes must not hide in **more

MOST_PARAMETERS, MANY_PARAMETERS, FUNCTIONS_WITH_MANY = 8, 6, 8
MOST_LINES_OF_A_FILE = 350
MOST_LINES = 15_720


def module_name(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in PRODUCT}


def room_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] == "tune_spaces":
        return "tune_spaces"
    return parts[1] if len(parts) > 1 else "__init__"


def imported_by(file: Path) -> set[str]:
    """Dotted names that a file imports, wherever; `from a import b` counts as a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_modules(file: Path) -> set[str]:
    """Modules of the product that a file imports; a name inside a module counts as that module.

    The package's version is no import of anything: `__init__` runs before every module anyway.
    """
    found = set()
    for name in imported_by(file) - {"ray_adaplr.__version__"}:
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            found.add(name)
    return found - {module_name(file)}


GRAPH = {module: imported_modules(file) for module, file in MODULES.items()}


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)


def test_every_import_goes_down_the_table() -> None:
    wrong = {
        (module, imported)
        for module, others in GRAPH.items()
        for imported in others
        if room_of(imported) != room_of(module) and room_of(imported) not in MAY_IMPORT.get(room_of(module), set())
    }
    assert wrong == set()


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Sets of modules that all lead to one another (Tarjan's strongly connected components of more than one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        index[module] = low[module] = len(index)
        stack.append(module)
        for other in graph[module]:
            if other not in index:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], index[other])
        if low[module] == index[module]:
            component = []
            while not component or component[-1] != module:
                component.append(stack.pop())
            if len(component) > 1:
                yield sorted(component)

    for module in graph:
        if module not in index:
            yield from visit(module)


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert list(circles(GRAPH)) == []


def test_a_circle_would_be_found() -> None:
    assert list(circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == [["a", "b", "c"]]


def test_the_top_level_has_five_modules() -> None:
    assert {file.stem for file in PACKAGE.glob("*.py")} == TOP_LEVEL


def test_no_file_asks_the_formatter_to_look_away() -> None:
    rooms = ("ray_adaplr", "tune_spaces", "tests", "benchmarks", "examples", "docs")
    files = [file for room in rooms for file in (PACKAGE.parent / room).rglob("*.py")]
    assert [file for file in files if "# fmt" + ":" in file.read_text()] == []


def parameter_counts() -> dict[str, int]:
    """Parameters of every function by its dotted name, self and cls not counted."""
    counts = {}

    def walk(node: ast.AST, name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner = name
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{name}.{child.name}"
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = child.args
                names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
                names += [extra.arg for extra in (arguments.vararg, arguments.kwarg) if extra]
                counts[inner] = len(names) - (bool(names) and names[0] in ("self", "cls"))
            walk(child, inner)

    for module, file in MODULES.items():
        walk(ast.parse(file.read_text()), module)
    return counts


def test_no_function_takes_more_than_eight_parameters_and_few_more_than_six() -> None:
    counts = parameter_counts()
    assert {name for name, count in counts.items() if count > MOST_PARAMETERS} == SHOWN_BY_HELP
    many = sorted(name for name, count in counts.items() if MANY_PARAMETERS < count <= MOST_PARAMETERS)
    assert len(many) <= FUNCTIONS_WITH_MANY, many


def test_no_file_is_larger_than_350_lines() -> None:
    sizes = {module: len(file.read_text().splitlines()) for module, file in MODULES.items()}
    assert {module for module, size in sizes.items() if size > MOST_LINES_OF_A_FILE} == set()


def test_the_product_does_not_grow_unseen() -> None:
    lines = [line for file in PRODUCT for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES


def test_importing_the_whole_core_brings_in_no_ray() -> None:
    modules = [f"ray_adaplr.core.{module.name}" for module in pkgutil.iter_modules(ray_adaplr.core.__path__)]
    assert "ray_adaplr.core.learner" in modules
    code = f"import sys, {', '.join(modules)}\nassert 'ray' not in sys.modules\nassert 'pyarrow' not in sys.modules"
    done = run_python(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("file", sorted((PACKAGE / "core").glob("*.py")), ids=lambda file: file.stem)
def test_a_core_file_names_no_ray_even_inside_a_function(file: Path) -> None:
    assert not any(name.split(".")[0] == "ray" for name in imported_by(file))


def test_draws_need_numpy_alone() -> None:
    names = {name.split(".")[0] for name in imported_by(PACKAGE / "core" / "draws.py")}
    assert names - set(sys.stdlib_module_names) == {"numpy"}


def test_importing_the_package_is_cheap_and_its_names_come_on_first_use() -> None:
    code = "import sys, ray_adaplr\nassert 'torch' not in sys.modules\nassert 'ray' not in sys.modules"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    code = "import sys\nfrom ray_adaplr import scores\nscores.infomax\nassert 'ray' not in sys.modules"
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'Adaplr'"):
        ray_adaplr.Adaplr  # noqa: B018
