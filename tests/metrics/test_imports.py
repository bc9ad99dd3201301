"""The pure parts import only torch, numpy, scipy and the standard library; their examples are true."""

import doctest
import importlib
import pkgutil

import pytest

import layerscope.metrics
import layerscope.spectra
from tests.forking import run_python

BLOCKED = (
    "transformers",
    "pandas",
    "rich",
    "typer",
    "altair",
    "pyarrow",
    "safetensors",
    "datasets",
    "tokenizers",
)
PURE = ("layerscope.metrics", "layerscope.spectra", "layerscope.capture.hooks")

PROGRAM = """
import importlib, pkgutil, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"blocked: {{name}}")

sys.meta_path.insert(0, Block())
try:
    import {first}
except ImportError:
    pass
else:
    raise SystemExit("the hook blocks nothing")
for name in {pure!r}:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{{name}}."):
        importlib.import_module(found.name)
from layerscope.metrics import metrics
print(len(metrics()))
"""


def test_the_pure_parts_need_only_torch_numpy_and_scipy():
    program = PROGRAM.format(blocked=BLOCKED, pure=PURE, first=BLOCKED[0])
    done = run_python(program, without=["layerscope", *BLOCKED])
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(layerscope.metrics.metrics())


def modules() -> list[str]:
    names = []
    for package in (layerscope.metrics, layerscope.spectra):
        names.append(package.__name__)
        names += [m.name for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    return names


@pytest.mark.parametrize("package", ["layerscope.metrics", "layerscope.spectra"])
def test_examples(package):
    attempted = 0
    for name in modules():
        if name.startswith(package):
            result = doctest.testmod(importlib.import_module(name))
            assert result.failed == 0, name
            attempted += result.attempted
    assert attempted > 0
