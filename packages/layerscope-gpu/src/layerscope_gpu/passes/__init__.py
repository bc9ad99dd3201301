"""Forward passes of a transformer in fewer steps, to the same bits: rotary positions, norms,
activations, parallel blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from layerscope_gpu.passes.activations import fast_activations
from layerscope_gpu.passes.blocks import fast_blocks, try_fast_blocks
from layerscope_gpu.passes.norms import fast_norms
from layerscope_gpu.passes.rotary import fast_rotation, try_rotating_in_place

__all__ = ["fast_passes", "find_shortcuts"]


@contextmanager
def fast_passes(module: nn.Module) -> Iterator[None]:
    """While this is open, passes of a module on a GPU use the kernels wherever those give the same
    bits."""
    with fast_rotation(module), fast_norms(), fast_activations(module), fast_blocks(module):
        yield


def find_shortcuts(module: nn.Module, work: Callable[[], Any]) -> None:
    """Find out, once, which steps of a module may be done in fewer. `work` is a small pass, and
    must give the same bits."""
    for tried in (try_rotating_in_place, try_fast_blocks):
        tried(module, work)
