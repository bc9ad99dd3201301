"""CUDA kernels for PyTorch that need no compiler installed: batched symmetric eigenvalues, token
statistics, fused model passes.

Every kernel is compiled by NVRTC (which torch's wheels bring), tried on a known answer before it is
used, and says where it cannot be used. Imports only torch, numpy and the standard library; what
encodes, prepares and scores for layerscope imports layerscope when it is called.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from torch import nn

from layerscope_gpu import (
    ahead,
    chebyshev,
    factors,
    passes,
    precision,
    resolvents,
    tokens,
    whitening,
)
from layerscope_gpu.cuda import UnusableError
from layerscope_gpu.eigenvalues import (
    eigvalsh,
    entropy_source,
    exact_entropy,
    kernel_source,
    solvers_used,
    usable_solvers,
)
from layerscope_gpu.entropy import approximate_entropy

INTERFACE = 7
"""Rises when a function that layerscope calls is added, taken away or changed; layerscope refuses
another than its own."""

__all__ = [
    "INTERFACE",
    "UnusableError",
    "ahead",
    "approximate_entropy",
    "chebyshev",
    "compile_for_profile",
    "eigvalsh",
    "encode_in_memory",
    "encode_shards",
    "entropy_source",
    "exact_entropy",
    "factors",
    "fast_passes",
    "find_shortcuts",
    "kernel_source",
    "measure_sites",
    "passes",
    "precision",
    "reducer",
    "resolvents",
    "solvers_used",
    "tokens",
    "usable_solvers",
    "whitening",
]


def fast_passes(module: nn.Module) -> AbstractContextManager[None]:
    """Run the passes of a module on a GPU by the kernels wherever those give the same bits."""
    return passes.fast_passes(module)


def find_shortcuts(module: nn.Module, work: Callable[[], Any]) -> None:
    """Find out, once, which steps of a module may be done in fewer. `work` is a small pass, and
    must give the same bits."""
    passes.find_shortcuts(module, work)


def reducer() -> type[Any]:
    """Return layerscope's reducer for a GPU."""
    reducing = import_module("layerscope_gpu.reducing")
    return reducing.DeviceReducer


_OF_LAYERSCOPE = {
    "encoding": ("compile_for_profile", "encode_in_memory", "encode_shards"),
    "measuring": ("measure_sites",),
}


def __getattr__(name: str) -> Any:
    for module, names in _OF_LAYERSCOPE.items():
        if name in names:
            return getattr(import_module(f"layerscope_gpu.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
