"""The kernels of layerscope-gpu where there is no GPU: layerscope is told that they can be used,
and the emulator runs them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import pytest

import layerscope_gpu
from layerscope import accelerator
from layerscope.metrics import Estimate, Metric, Options, SiteVectors
from layerscope_gpu.emulator import launch, missing
from layerscope_gpu.measuring import by_site, start_work

needs_emulator = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def use_kernels(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
    """Until the test ends, layerscope asks layerscope-gpu for tensors of a CPU too; the kernels of
    these modules are emulated."""
    monkeypatch.setattr(accelerator, "on", lambda device: layerscope_gpu)
    for module in modules:
        monkeypatch.setattr(module, "launch", launch)


def estimate_sites(
    metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options
) -> list[dict[str, Estimate]]:
    """Return the estimates of the metrics that layerscope-gpu computes for many sites together."""
    estimates: list[dict[str, Estimate]] = [{} for _ in sites]
    for _, finish in start_work(metrics, sites, options):
        for known, new in zip(estimates, by_site(finish(), len(sites)), strict=True):
            known.update(new)
    return estimates
