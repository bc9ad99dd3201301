"""Is there something faster? The one place that knows whether layerscope-gpu, a package of CUDA
kernels, is there and fits.

Everything works without it, through torch's own operators. With it, callers ask here for the device
that their tensors are on, and each of its functions says where it cannot do what is asked.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch

from layerscope.errors import LayerscopeError
from layerscope.extras import require
from layerscope.version import install_package

INTERFACE = 3
"""What is called here of layerscope-gpu; the package says which it offers."""


def on(device: torch.device) -> ModuleType | None:
    """The package `layerscope_gpu` for tensors on a GPU, where it is installed; None on other
    devices and without it.

    >>> on(torch.device("cpu")) is None
    True
    """
    return _package() if device.type == "cuda" else None


def require_scoring() -> None:
    """An error unless its arithmetic, which scores on a device, is there; it fits this version, or
    that is an error too."""
    require("device scoring")
    _package()


@cache
def _package() -> ModuleType | None:
    try:
        import layerscope_gpu
    except ImportError:
        warnings.warn(
            "layerscope-gpu is not installed: torch.linalg.eigvalsh takes the place of its kernels, which is 50 to 300 times "
            f"slower for small matrices. {install_package('layerscope-gpu')}",
            stacklevel=2,
        )
        return None
    if (offered := getattr(layerscope_gpu, "INTERFACE", 1)) != INTERFACE:
        which = "layerscope-gpu" if offered < INTERFACE else "layerscope"
        raise LayerscopeError(
            f"layerscope-gpu offers the interface {offered}, and this layerscope calls {INTERFACE}: {which} is too old. "
            f"{install_package(which)}"
        )
    return layerscope_gpu
