"""The states that a probe's training reads: kept in memory after one pass, or computed again in
every epoch.

`store_size` decides: all tokens are kept where they fit. Poolings with one vector per item are
small and always kept. A run with a folder writes kept states down, a part at a time, so that a
stopped run goes on with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from layerscope.probing.frozen import ModelReader, Parts
from layerscope.progress import Progress
from layerscope.spectra.execution import free_memory
from layerscope.store import checked

_CHUNK = {"cpu": 8 * 2**20, "cuda": 2**30}
_EPS = 1e-6


class States(Protocol):
    """States of all layers for any items, some layers at a time."""

    device: torch.device

    def read(
        self, layers: list[int], items: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Pieces of `layers` (a slice of that list) with their states (G, B, N, D) and the mask of
        tokens (B, N)."""


class CachedStates:
    """States that were computed once: a tensor (layers, items, tokens, D)."""

    def __init__(self, states: Tensor, mask: Tensor | None, device: torch.device) -> None:
        self.states, self.mask, self.device = states, mask, device
        self._room = max(1, _CHUNK.get(device.type, _CHUNK["cpu"]))
        self._buffer: Tensor | None = None

    def read(
        self, layers: list[int], items: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Pieces that fit a fixed room, so that the products on one find it near the processor.

        A piece is valid until the next one is asked for: both lie in the same memory.
        """
        rows = torch.from_numpy(items).to(self.states.device)
        run = (
            slice(int(items[0]), int(items[0]) + len(items))
            if (np.diff(items) == 1).all()
            else None
        )
        mask = None if self.mask is None else self.mask[rows].to(self.device)
        shape = (len(items), *self.states.shape[2:])
        size = min(len(layers), max(1, self._room // (4 * math.prod(shape))))
        for start in range(0, len(layers), size):
            piece = slice(start, min(start + size, len(layers)))
            states = self._gathered(layers[piece], rows, run, shape).to(self.device)
            yield piece, states, mask

    def _gathered(
        self, layers: list[int], rows: Tensor, run: slice | None, shape: tuple[int, ...]
    ) -> Tensor:
        """Neighbors among layers and items are read where they lie; others are brought together."""
        if run is not None and layers[-1] - layers[0] == len(layers) - 1:
            return self.states[layers[0] : layers[-1] + 1, run]
        gathered = self._room_for((len(layers), *shape))
        for into, layer in zip(gathered, layers, strict=True):
            if run is not None:
                into.copy_(self.states[layer, run])
            else:
                torch.index_select(self.states[layer], 0, rows, out=into)
        return gathered

    def _room_for(self, shape: tuple[int, ...]) -> Tensor:
        """The first part of a buffer that is kept: fresh memory would cost more than what is put
        there."""
        count = math.prod(shape)
        if self._buffer is None or len(self._buffer) < count:
            with torch.inference_mode(False):  # training writes into it too
                self._buffer = torch.empty(
                    count, dtype=self.states.dtype, device=self.states.device
                )
        return self._buffer[:count].view(shape)


class RecomputedStates:
    """States that are computed whenever they are read: one forward pass per epoch."""

    def __init__(self, reader: ModelReader, pooling: str) -> None:
        self.reader, self.pooling, self.device = reader, pooling, reader.model.device

    def read(
        self, layers: list[int], items: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """All layers of one pass."""
        states, mask = self.reader.read_all(items, [self.pooling])[self.pooling]
        chosen = states if len(layers) == len(states) else states[layers]
        yield slice(0, len(layers)), chosen, mask


@dataclass(frozen=True)
class Statistics:
    """Mean and scale (layers, D) of the training split's states."""

    mean: Tensor
    scale: Tensor


def statistics(states: States, layers: list[int], items: np.ndarray, batch: int) -> Statistics:
    """Per layer and feature, over all tokens of some items; sums in float64 where the device has
    it."""
    exact = torch.float32 if states.device.type == "mps" else torch.float64
    total: Tensor | None = None
    square = count = torch.zeros(())
    for start in range(0, len(items), batch):
        for piece, x, mask in states.read(layers, items[start : start + batch]):
            if total is None:
                total = torch.zeros(len(layers), x.shape[-1], dtype=exact, device=x.device)
                square, count = (
                    torch.zeros_like(total),
                    torch.zeros(len(layers), dtype=exact, device=x.device),
                )
            wide = (
                x.to(exact) if mask is None else torch.where(mask[None, :, :, None], x, 0).to(exact)
            )
            total[piece] += wide.sum((1, 2))
            square[piece] += wide.square().sum((1, 2))
            count[piece] += x.shape[1] * x.shape[2] if mask is None else mask.sum()
    assert total is not None
    mean = total / count[:, None]
    variance = (square / count[:, None] - mean.square()).clamp_min(0)
    return Statistics(mean.float(), (variance + _EPS).sqrt().float())


DEFAULT_SIZE = 4 * 2**30
_PARTS = 25  # a run that is stopped repeats at most one of this many parts
_GPU_SHARE = 0.6


@dataclass(frozen=True)
class StoragePlan:
    """How each pooling is kept: float32 or none (computed again), and the bytes that it takes."""

    how: dict[str, str]
    bytes: int

    def facts(self) -> dict[str, Any]:
        """Return the facts for the manifest."""
        return {"states": dict(self.how), "bytes": self.bytes}


def plan_storage(
    poolings: Sequence[str], layers: int, lengths: Sequence[int], width: int, store_size: int
) -> StoragePlan:
    """Return what is kept in `store_size` bytes."""
    vector = 4 * layers * len(lengths) * width  # bytes of one vector per item
    pooled = [pooling for pooling in poolings if pooling != "tokens"]
    how = dict.fromkeys(pooled, "float32")
    used = len(pooled) * vector
    if "tokens" in poolings:
        tokens = max(lengths) * vector
        fits = used + tokens <= store_size
        how["tokens"] = "float32" if fits else "none"
        used += tokens if fits else 0
    return StoragePlan(how, used)


def default_store_size(device: torch.device) -> int:
    """Return the bytes of states to keep by default: 4 GiB, or most of a GPU's free memory."""
    return DEFAULT_SIZE if device.type != "cuda" else int(_GPU_SHARE * free_memory(device))


def open_states(
    reader: ModelReader,
    plan: StoragePlan,
    scratch: Path | None,
    bar: Progress,
    read: Parts | None = None,
) -> dict[str, States]:
    """Return the states of all poolings, kept or to be computed.

    Kept ones are read here, parts of the items by `read`: an engine's workers, say.
    """
    device = reader.model.device
    kept = [pooling for pooling, how in plan.how.items() if how != "none"]
    stores = {pooling: _empty_store(reader, pooling) for pooling in kept}
    if kept:
        _fill(stores, reader, scratch, bar, read or reader.read_parts)
    states: dict[str, States] = {
        pooling: RecomputedStates(reader, pooling) for pooling in plan.how if pooling not in kept
    }
    lengths = torch.tensor(reader.lengths)
    is_ragged = int(lengths.min()) < int(lengths.max())
    for pooling, store in stores.items():
        mask = None
        if pooling == "tokens" and is_ragged:
            mask = (torch.arange(store.shape[2]) < lengths[:, None]).to(store.device)
        states[pooling] = CachedStates(store, mask, device)
    return states


def _empty_store(reader: ModelReader, pooling: str) -> Tensor:
    """Return room for one pooling, on the GPU where it fits."""
    lengths = reader.lengths
    tokens = max(lengths) if pooling == "tokens" else 1
    shape = (len(reader.sites), len(lengths), tokens, reader.model.width)
    device = reader.model.device
    fits = device.type == "cuda" and 4 * math.prod(shape) <= _GPU_SHARE * free_memory(device)
    # tokens beyond an item's own are masked, and must be finite for that
    make = torch.empty if min(lengths) == max(lengths) else torch.zeros
    return make(shape, device=device if fits else "cpu")


def _fill(
    stores: Mapping[str, Tensor],
    reader: ModelReader,
    scratch: Path | None,
    bar: Progress,
    read: Parts,
) -> None:
    """Put the states of all items into their stores; parts in the scratch folder are not read
    again."""
    count = len(reader.lengths)
    size = math.ceil(count / min(_PARTS, count))
    bar.begin(f"{reader.model.name}|items", count)

    def put(part: np.ndarray, states: Mapping[str, Tensor]) -> None:
        for pooling, store in stores.items():
            own = states[pooling]
            store[:, part[0] : part[0] + len(part), : own.shape[2]] = own.to(store.device)
        bar.advance(len(part))

    missing: list[np.ndarray] = []
    files: list[Path | None] = []
    for start in range(0, count, size):
        part = np.arange(start, min(start + size, count))
        file = None if scratch is None else scratch / f"states-{start}{checked.ARRAYS}"
        arrays = None if file is None else checked.read_or_discard(file, checked.read_arrays)
        if arrays is None:
            missing.append(part)
            files.append(file)
        else:
            put(part, {pooling: torch.from_numpy(array) for pooling, array in arrays.items()})
    for part, file, reading in zip(missing, files, read(missing, list(stores)), strict=True):
        states = {pooling: own for pooling, (own, _) in reading.items()}
        put(part, states)
        if file is not None:
            arrays = {pooling: own.cpu().numpy() for pooling, own in states.items()}
            checked.write_arrays(file, arrays)
