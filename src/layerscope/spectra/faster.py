"""The one place that knows whether a package of CUDA kernels is installed (entry point
`layerscope.accelerators`) and fits.

Everything works without it, through torch's own operators. With it, callers ask here for the device
that their tensors are on, and each of its functions says where it cannot do what is asked.
"""

from __future__ import annotations

import warnings
from functools import cache
from types import ModuleType

import torch

from layerscope.core.plugins import entry_points
from layerscope.errors import LayerscopeError
from layerscope.extras import no_accelerator, other_interface

GROUP = "layerscope.accelerators"
INTERFACE = 6
"""What is called here of the package; the package says which it offers."""


def on(device: torch.device) -> ModuleType | None:
    """The package of kernels for tensors on a GPU, where it is installed; None on other
    devices and without it.

    >>> on(torch.device("cpu")) is None
    True
    """
    return installed() if device.type == "cuda" else None


@cache
def installed() -> ModuleType | None:
    """The installed accelerator; None where there is none, which is told once."""
    for point in entry_points(GROUP):
        try:
            package: ModuleType = point.load()
        except ImportError:
            continue
        if (offered := getattr(package, "INTERFACE", 1)) != INTERFACE:
            raise LayerscopeError(other_interface(offered, INTERFACE))
        return package
    warnings.warn(no_accelerator(), stacklevel=2)
    return None
