"""Kernels that will be needed, compiled in the background: one after the other they would take
seconds, once per machine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import torch

from layerscope_gpu.cuda import architecture_of, compile_ahead
from layerscope_gpu.passes import activations, norms, rotary
from layerscope_gpu.tokens import gram
from layerscope_gpu.tokens.normed import KERNELS, source_for


def reading_kernels(width: int, dtype: torch.dtype) -> list[str]:
    """The source of the kernels that run a model of this width and type and reduce its states."""
    if dtype.itemsize != 2:  # passes in single precision are left as they are
        return [gram.SOURCE]
    passes = [activations.SOURCE, rotary.source(dtype), norms.source(width, dtype)]
    return [*passes, *(source_for(kernel, width, dtype) for kernel in KERNELS), gram.SOURCE]


def compile_kernels(sources: Iterable[str | None], device: torch.device) -> None:
    """Start compiling them for a GPU. Where that cannot be done, they will not be used."""
    with suppress(OSError, RuntimeError):
        compile_ahead(
            [source for source in sources if source is not None], architecture_of(device.index or 0)
        )
