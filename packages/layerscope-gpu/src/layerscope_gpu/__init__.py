"""CUDA kernels for PyTorch that need no compiler installed: batched symmetric eigenvalues, token
statistics, fused model passes.

Every kernel is compiled by NVRTC (which torch's wheels bring) and tried on a known answer before it
is used. Importing this needs only torch, numpy and the standard library; what encodes, prepares and
scores for layerscope imports layerscope when it is called.
"""

from importlib import import_module
from typing import Any

from layerscope_gpu import factors, passes, precision, resolvents, tokens, whitening
from layerscope_gpu.cuda import UnusableError
from layerscope_gpu.eigenvalues import (
    eigvalsh,
    entropy_source,
    exact_entropy,
    kernel_source,
    solvers_used,
)
from layerscope_gpu.passes import fast_passes, find_shortcuts

INTERFACE = 8
"""Rises when a function that layerscope calls is added, taken away or changed; layerscope refuses
another than its own."""

__all__ = [
    "INTERFACE",
    "UnusableError",
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
    "reduction",
    "resolvents",
    "solvers_used",
    "tokens",
    "whitening",
]


def reduction() -> type[Any]:
    """Return layerscope's reduction of a batch on a GPU."""
    return import_module("layerscope_gpu.reducing").DeviceReduction


_OF_LAYERSCOPE = {
    "compile_for_profile": "encoding",
    "encode_in_memory": "encoding",
    "encode_shards": "encoding",
    "measure_sites": "measuring",
}


def __getattr__(name: str) -> Any:
    if name in _OF_LAYERSCOPE:
        return getattr(import_module(f"layerscope_gpu.{_OF_LAYERSCOPE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
