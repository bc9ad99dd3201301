"""Where a probe's training finds states: kept after one pass, in memory or on disk, or computed anew in every epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

_CHUNK = {"cpu": 8 * 2**20, "cuda": 2**30}
_EPS = 1e-6


class StateReader(Protocol):
    """Runs the model on some items."""

    def read(self, items: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """States (layers, items, tokens, D) in float32, and which tokens exist (None: all)."""


class States(Protocol):
    """States of all layers for any items, some layers at a time."""

    device: torch.device

    def read(self, layers: list[int], items: np.ndarray) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Pieces of `layers` (a slice of that list) with their states (G, B, N, D) and the mask of tokens (B, N)."""


class KeptStates:
    """States that were computed once: a tensor (layers, items, tokens, D), on a device or mapped from a file."""

    def __init__(
        self,
        kept: Tensor,
        mask: Tensor | None,
        device: torch.device,
        shift: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """`shift` and `scale` (layers, D) undo what half precision was stored under."""
        self.kept, self.mask, self.device = kept, mask, device
        self._shift, self._scale = shift, scale
        self._room = max(1, _CHUNK.get(device.type, _CHUNK["cpu"]))
        self._buffer: Tensor | None = None

    def read(self, layers: list[int], items: np.ndarray) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Pieces that fit a fixed room, so that the products on one find it near the processor.

        A piece is valid until the next one is asked for: both lie in the same memory.
        """
        rows = torch.from_numpy(items).to(self.kept.device)
        run = slice(int(items[0]), int(items[0]) + len(items)) if (np.diff(items) == 1).all() else None
        mask = None if self.mask is None else self.mask[rows].to(self.device)
        shape = (len(items), *self.kept.shape[2:])
        size = min(len(layers), max(1, self._room // (4 * math.prod(shape))))
        for start in range(0, len(layers), size):
            piece = slice(start, min(start + size, len(layers)))
            states = self._gathered(layers[piece], rows, run, shape).to(self.device, torch.float32)
            if self._shift is not None and self._scale is not None:
                states = states * self._scale[layers[piece]][:, None, None] + self._shift[layers[piece]][:, None, None]
            yield piece, states, mask

    def _gathered(self, layers: list[int], rows: Tensor, run: slice | None, shape: tuple[int, ...]) -> Tensor:
        """Neighbours among layers and items are read where they lie; others are brought together."""
        if run is not None and layers[-1] - layers[0] == len(layers) - 1:
            return self.kept[layers[0] : layers[-1] + 1, run]
        gathered = self._room_for((len(layers), *shape))
        for into, layer in zip(gathered, layers, strict=True):
            if run is not None:
                into.copy_(self.kept[layer, run])
            else:
                torch.index_select(self.kept[layer], 0, rows, out=into)
        return gathered

    def _room_for(self, shape: tuple[int, ...]) -> Tensor:
        """The first part of a buffer that is kept: fresh memory would cost more than what is put there."""
        count = math.prod(shape)
        if self._buffer is None or len(self._buffer) < count:
            with torch.inference_mode(False):  # training writes into it too
                self._buffer = torch.empty(count, dtype=self.kept.dtype, device=self.kept.device)
        return self._buffer[:count].view(shape)


class FreshStates:
    """States that are computed whenever they are wanted: one forward pass per epoch, and no room for them is needed."""

    def __init__(self, reader: StateReader, device: torch.device) -> None:
        self.reader, self.device = reader, device

    def read(self, layers: list[int], items: np.ndarray) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """All layers of one pass."""
        states, mask = self.reader.read(items)
        wanted = states if len(layers) == len(states) else states[layers]
        yield slice(0, len(layers)), wanted, mask


@dataclass(frozen=True)
class Statistics:
    """Mean and scale (layers, D) of the training split's states."""

    mean: Tensor
    scale: Tensor


def statistics(states: States, layers: list[int], items: np.ndarray, batch: int) -> Statistics:
    """Per layer and feature, over all tokens of some items; sums in float64 where the device has it."""
    exact = torch.float32 if states.device.type == "mps" else torch.float64
    total: Tensor | None = None
    square = count = torch.zeros(())
    for start in range(0, len(items), batch):
        for piece, x, mask in states.read(layers, items[start : start + batch]):
            if total is None:
                total = torch.zeros(len(layers), x.shape[-1], dtype=exact, device=x.device)
                square, count = torch.zeros_like(total), torch.zeros(len(layers), dtype=exact, device=x.device)
            wide = x.to(exact) if mask is None else torch.where(mask[None, :, :, None], x, 0).to(exact)
            total[piece] += wide.sum((1, 2))
            square[piece] += wide.square().sum((1, 2))
            count[piece] += x.shape[1] * x.shape[2] if mask is None else mask.sum()
    assert total is not None
    mean = total / count[:, None]
    variance = (square / count[:, None] - mean.square()).clamp_min(0)
    return Statistics(mean.float(), (variance + _EPS).sqrt().float())
