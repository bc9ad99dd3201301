"""Where a probe's training finds states: stored after one pass, in memory or in files, or computed
again in every epoch.

`store_size` decides: all tokens are kept where they fit, else every epoch runs the model again.
Poolings with one vector per item are small and always kept. A stopped run goes on with the states
that are in its files.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from layerscope.errors import UnknownNameError
from layerscope.probing.frozen import ModelReader, Parts
from layerscope.progress import Progress
from layerscope.spectra.execution import free_memory
from layerscope.store import atomic, checked

_CHUNK = {"cpu": 8 * 2**20, "cuda": 2**30}
_EPS = 1e-6
_KEPT = "kept.json"

log = logging.getLogger("layerscope")


class States(Protocol):
    """States of all layers for any items, some layers at a time."""

    device: torch.device

    def read(
        self, layers: list[int], items: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """Pieces of `layers` (a slice of that list) with their states (G, B, N, D) and the mask of
        tokens (B, N)."""


class CachedStates:
    """States that were computed once: a tensor (layers, items, tokens, D), on a device or mapped
    from a file."""

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
    """States that are computed whenever they are wanted: one forward pass per epoch, and no room
    for them is needed."""

    def __init__(self, reader: ModelReader, pooling: str) -> None:
        self.reader, self.pooling, self.device = reader, pooling, reader.model.device

    def read(
        self, layers: list[int], items: np.ndarray
    ) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        """All layers of one pass."""
        states, mask = self.reader.read_all(items)[self.pooling]
        wanted = states if len(layers) == len(states) else states[layers]
        yield slice(0, len(layers)), wanted, mask


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
STORAGE = ("auto", "float32", "none")
_PARTS = 25  # a run that is stopped repeats at most one of this many parts
_GPU_SHARE = 0.6


@dataclass(frozen=True)
class StoragePlan:
    """How each pooling is kept: float32 or none (computed again), and the bytes that it takes."""

    how: dict[str, str]
    bytes: int

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"states": dict(self.how), "bytes": self.bytes}


def plan_storage(
    poolings: Sequence[str],
    layers: int,
    lengths: Sequence[int],
    width: int,
    keep: str,
    store_size: int,
) -> StoragePlan:
    """Decide what to keep; `keep` other than `auto` is taken at its word for all tokens."""
    if keep not in STORAGE:
        raise UnknownNameError("way to keep states", keep, STORAGE)
    vector = 4 * layers * len(lengths) * width  # bytes of one vector per item
    how = dict.fromkeys((pooling for pooling in poolings if pooling != "tokens"), "float32")
    used = len(how) * vector
    if "tokens" in poolings:
        tokens = max(lengths) * vector
        fits = used + tokens <= store_size
        how["tokens"] = keep if keep != "auto" else "float32" if fits else "none"
        used += tokens if how["tokens"] == "float32" else 0
    return StoragePlan(how, used)


class StateCache:
    """Runs the model once over all items and keeps what the plan says."""

    def __init__(
        self,
        reader: ModelReader,
        plan: StoragePlan,
        folder: Path | None,
        remote: Parts | None = None,
    ) -> None:
        """`remote` reads parts of the items instead of `reader`: by an engine's workers, say."""
        self.reader, self.plan, self.folder, self.remote = reader, plan, folder, remote
        self.order = np.arange(len(reader.lengths))
        self._stores: dict[str, Tensor] = {}
        self._files: dict[str, np.memmap] = {}
        self._parts: list[
            dict[str, Any]
        ] = []  # what is in the files: from which item to which, and the checksums

    @property
    def stored_poolings(self) -> list[str]:
        """The poolings that are kept."""
        return [pooling for pooling, how in self.plan.how.items() if how != "none"]

    def run(self, bar: Progress) -> dict[str, States]:
        """All poolings, kept or to be computed."""
        device = self.reader.model.device
        if self.stored_poolings:
            self._fill(bar)
        lengths = torch.tensor(self.reader.lengths)
        ragged = int(lengths.min()) < int(lengths.max())
        out: dict[str, States] = {}
        for pooling, how in self.plan.how.items():
            if how == "none":
                out[pooling] = RecomputedStates(self.reader, pooling)
                continue
            store = _near(self._stores[pooling], device)
            mask = (
                torch.arange(store.shape[2]) < lengths[:, None]
                if pooling == "tokens" and ragged
                else None
            )
            out[pooling] = CachedStates(
                store, None if mask is None else mask.to(store.device), device
            )
        return out

    def _fill(self, bar: Progress) -> None:
        wanted, earlier = self.reader.poolings, self._earlier()
        self.reader.poolings = self.stored_poolings
        try:
            for pooling in self.stored_poolings:
                self._stores[pooling] = self._store(pooling)
            before = self._resumed(earlier)
            size = math.ceil(len(self.order) / min(_PARTS, len(self.order)))
            bar.begin(f"{self.reader.model.name}|items", len(self.order), before)
            starts = range(before, len(self.order), size)
            parts = [self.order[start : start + size] for start in starts]
            read = (
                map(self.reader.read_all, parts)
                if self.remote is None
                else self.remote(parts, self.stored_poolings)
            )
            for start, part, read_states in zip(starts, parts, read, strict=True):
                for pooling, (states, _) in read_states.items():
                    self._put(pooling, start, states)
                self._note(start, start + len(part))
                bar.advance(len(part))
        finally:
            self.reader.poolings = wanted

    def _store(self, pooling: str) -> Tensor:
        """Room for one pooling, in a file where there is a folder."""
        lengths = self.reader.lengths
        tokens = max(lengths) if pooling == "tokens" else 1
        shape = (len(self.reader.sites), len(self.order), tokens, self.reader.model.width)
        if self.folder is None:
            device = self.reader.model.device
            room = device if device.type == "cuda" and _fits(shape, device) else torch.device("cpu")
            make = torch.empty if min(lengths) == max(lengths) else torch.zeros
            return make(shape, device=room)
        file = self.folder / f"{pooling}.float32"
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic.explained(file):
            atomic.reserve(file, 4 * math.prod(shape))
            mapped = np.memmap(file, dtype=np.float32, mode="r+", shape=shape)
        self._files[pooling] = mapped
        return torch.from_numpy(mapped)

    def _put(self, pooling: str, start: int, states: Tensor) -> None:
        store = self._stores[pooling]
        store[:, start : start + states.shape[1], : states.shape[2]] = states.to(store.device)

    def _note(self, start: int, stop: int) -> None:
        """Note that some items are in the files, with the checksums of what was written."""
        if self.folder is None:
            return
        with atomic.explained(self.folder):
            for mapped in self._files.values():
                mapped.flush()
        self._parts.append({"start": start, "stop": stop, "crc32": self._sums(start, stop)})
        checked.write_json(self.folder / _KEPT, {"how": self.plan.how, "parts": self._parts})

    def _sums(self, start: int, stop: int) -> dict[str, int]:
        sums = {}
        for pooling, mapped in self._files.items():
            crc = 0
            for states in mapped:
                crc = zlib.crc32(states[start:stop].data, crc)
            sums[pooling] = crc
        return sums

    def _earlier(self) -> list[dict[str, Any]]:
        """The parts that an earlier attempt left, if all their files are there."""
        if self.folder is None:
            return []
        noted = checked.read_or_discard(self.folder / _KEPT, checked.read_checked_json) or {}
        files = [f"{pooling}.float32" for pooling in self.stored_poolings]
        if noted.get("how") != self.plan.how or not all(
            (self.folder / file).exists() for file in files
        ):
            return []
        return list(noted.get("parts", ()))

    def _resumed(self, earlier: list[dict[str, Any]]) -> int:
        """How many items need not be read again: those before the first part that is not as it was
        written."""
        for part in earlier:
            if self._sums(part["start"], part["stop"]) != part["crc32"]:
                log.warning(
                    "%s: states from item %d on are damaged and computed again",
                    self.folder,
                    part["start"],
                )
                break
            self._parts.append(part)
        return int(self._parts[-1]["stop"]) if self._parts else 0


def default_store_size(device: torch.device) -> int:
    """Bytes of states to keep where nothing is said: 4 GiB, or most of a GPU's free memory."""
    return DEFAULT_SIZE if device.type != "cuda" else int(_GPU_SHARE * free_memory(device))


def _near(store: Tensor, device: torch.device) -> Tensor:
    """On the GPU where there is room for it, else where it is."""
    if (
        device.type != "cuda"
        or store.device.type == "cuda"
        or not _fits(tuple(store.shape), device)
    ):
        return store
    return store.to(device)


def _fits(shape: tuple[int, ...], device: torch.device) -> bool:
    return 4 * math.prod(shape) <= _GPU_SHARE * free_memory(device)
