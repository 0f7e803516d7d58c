"""What `pip install ray-adaplr` alone brings is enough: nothing imports a package of an extra before it is used."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
IMPORTED_AS = {"scikit-learn": "sklearn", "mlflow-skinny": "mlflow"}
BY_RAY_ITSELF = {"ray", "boto3", "pyyaml"}  # where they are installed, Ray imports them
BEHIND_THEM = {"huggingface_hub", "pytorch_lightning", "starlette", "fastapi", "ray.serve"}

CODE = """
import importlib, pkgutil, sys
import ray_adaplr
from ray_adaplr.cli.main import make_parser
make_parser().format_help()
assert not {"ray", "torch", "tensorboard"} & set(sys.modules)
for module in pkgutil.walk_packages(ray_adaplr.__path__, "ray_adaplr."):
    if module.name not in ("ray_adaplr.__main__", "ray_adaplr.integrations.serving"):  # which is Ray Serve's
        importlib.import_module(module.name)
assert not OPTIONAL & set(sys.modules), OPTIONAL & set(sys.modules)
"""


def packages_of_extras() -> set[str]:
    """The packages that the extras and the development set name, as they are imported."""
    text = (ROOT / "pyproject.toml").read_text()
    extras = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    names = set(re.findall(r'"([A-Za-z0-9_-]+)[\[<>=]', extras)) - BY_RAY_ITSELF - {"ray-adaplr"}
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names}


def test_no_module_of_the_package_imports_a_package_of_an_extra() -> None:
    optional = packages_of_extras() | BEHIND_THEM
    assert {"transformers", "datasets", "onnx", "mlflow", "wandb", "cleanlab", "lightning", "timm"} <= optional
    done = subprocess.run(
        [sys.executable, "-c", f"OPTIONAL = {optional}\n{CODE}"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
