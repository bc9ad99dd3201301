"""The kernels of layerscope-gpu where there is no GPU: layerscope is told that they can be used,
and the emulator runs them."""

from __future__ import annotations

from types import ModuleType

import pytest

import layerscope_gpu
from layerscope import accelerator
from layerscope_gpu.emulator import launch, missing

needs_emulator = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def use_kernels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Until the test ends, layerscope asks layerscope-gpu for tensors of a CPU too; the kernels of
    these modules are emulated."""
    monkeypatch.setattr(accelerator, "on", lambda device: layerscope_gpu)
    for module in modules:
        monkeypatch.setattr(module, "launch", launch)
