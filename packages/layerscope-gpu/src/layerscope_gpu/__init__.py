"""CUDA kernels for PyTorch that need no compiler installed: batched symmetric eigenvalues, token
statistics, fused model passes.

NVRTC, which torch's wheels bring, compiles every kernel, and the kernel is tested on a known answer
before its first use. Importing this package needs only torch, numpy and the standard library. The
functions that encode, measure and score for layerscope import layerscope when they are called.
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
"""The version of the functions that layerscope calls. It rises when one of them is added, removed
or changed; layerscope accepts only the version that it was written for."""

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
    """Return the class that reduces a batch's states on a GPU."""
    return import_module("layerscope_gpu.reducing").DeviceReduction


_IMPORTED_LATER = {
    "compile_for_profile": "encoding",
    "encode_in_memory": "encoding",
    "encode_shards": "encoding",
    "measure_sites": "measuring",
}


def __getattr__(name: str) -> Any:
    if name in _IMPORTED_LATER:
        return getattr(import_module(f"layerscope_gpu.{_IMPORTED_LATER[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
