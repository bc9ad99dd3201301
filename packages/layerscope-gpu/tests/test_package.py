"""The package by itself: it needs torch and numpy alone, and is a stand-in for torch's call on any
device."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import layerscope_gpu

PROGRAM = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("layerscope", "transformers", "pandas", "scipy"):
            raise ImportError(name)
sys.meta_path.insert(0, Block())
sys.path.insert(0, sys.argv[1])
import importlib, pkgutil, layerscope_gpu
for found in pkgutil.walk_packages(layerscope_gpu.__path__, "layerscope_gpu."):
    if not found.name.startswith(("layerscope_gpu.mteb_tasks.", "layerscope_gpu.encoding", "layerscope_gpu.measuring", "layerscope_gpu.metrics", "layerscope_gpu.reducing", "layerscope_gpu.token_measures")):  # layerscope loads these
        importlib.import_module(found.name)
print(len([name for name in sys.modules if name.startswith("layerscope_gpu")]))
"""


def test_it_imports_torch_and_numpy_alone() -> None:
    source = Path(layerscope_gpu.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


@given(
    shape=st.sampled_from([(), (0,), (3,), (2, 2)]),
    n=st.sampled_from([0, 1, 5]),
    double=st.booleans(),
)
def test_eigenvalues_on_a_cpu_are_those_of_torch(
    shape: tuple[int, ...], n: int, double: bool
) -> None:
    matrices = torch.randn(*shape, n, n, dtype=torch.float64 if double else torch.float32)
    matrices = matrices + matrices.mT
    found = layerscope_gpu.eigvalsh(matrices)
    assert found.shape == (*shape, n)
    assert found.dtype == matrices.dtype
    if found.numel():
        assert torch.equal(found, torch.linalg.eigvalsh(matrices))


def test_the_benchmark_says_that_it_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["benchmark.py"])
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        runpy.run_path(
            str(Path(layerscope_gpu.__file__).parents[2] / "benchmark.py"), run_name="__main__"
        )
