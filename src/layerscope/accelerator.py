"""The one place that knows whether a package for GPUs is installed (entry point
`layerscope.accelerators`) and fits.

Everything works without it, through torch's own operators. With it, callers ask here for the
device that their tensors are on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from layerscope.core.plugins import entry_points
from layerscope.errors import LayerscopeError
from layerscope.extras import no_accelerator, other_interface

__all__ = ["Accelerator"]

GROUP = "layerscope.accelerators"
INTERFACE = 8
"""What is called here of the package; the package says which it offers."""


class Accelerator(Protocol):
    """The functions of a package for a kind of device."""

    def fast_passes(self, module: nn.Module) -> AbstractContextManager[None]:
        """Run the passes of a module in fewer steps, to the same bits."""

    def find_shortcuts(self, module: nn.Module, work: Callable[[], Any]) -> None:
        """Find out, by a small pass, which steps of a module may be done in fewer."""

    def eigvalsh(self, matrices: Tensor, overwrite: bool) -> Tensor:
        """Return the eigenvalues (B, n) of symmetric matrices (B, n, n)."""

    def solvers_used(self, index: int) -> str:
        """Return the solvers that have been used on a device since this was last asked."""

    def reduction(self) -> type[Any]:
        """Return the subclass of `capture.BatchReduction` for the device."""

    def encode_in_memory(self, task: Any, bar: Any) -> Any:
        """Plan and encode the items of a profile, whose vectors stay on the device."""

    def encode_shards(
        self, task: Any, plan: Any, shards: Any, store: Callable[[Any], None], bar: Any
    ) -> None:
        """Encode shards of a profile, and store each."""

    def measure_sites(self, estimator: Any, count: int, device: torch.device) -> Iterator[Any]:
        """Yield the metrics of each site of a profile."""


def on(device: torch.device) -> Accelerator | None:
    """Return the accelerator for tensors on a GPU, where one is installed; None on other devices
    and without it.

    >>> on(torch.device("cpu")) is None
    True
    """
    return installed() if device.type == "cuda" else None


@cache
def installed() -> Accelerator | None:
    """Return the installed accelerator; None where there is none, which is told once."""
    for point in entry_points(GROUP):
        try:
            package = point.load()
        except ImportError:
            continue
        offered = getattr(package, "INTERFACE", 1)
        if offered != INTERFACE:
            raise LayerscopeError(other_interface(offered, INTERFACE))
        return cast(Accelerator, package)
    warnings.warn(no_accelerator(), stacklevel=2)
    return None
