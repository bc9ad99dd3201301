"""Forward passes of transformers in fewer steps with the same bits: rotary positions, norms,
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
    """Make passes of a module on a GPU use the kernels inside a block, where the bits agree."""
    with fast_rotation(module), fast_norms(), fast_activations(module), fast_blocks(module):
        yield


def find_shortcuts(module: nn.Module, work: Callable[[], Any]) -> None:
    """Test, once per module, which shortcuts give the same bits in a small pass, `work`."""
    try_rotating_in_place(module, work)
    try_fast_blocks(module, work)
