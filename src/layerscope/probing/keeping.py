"""States kept after one pass: in memory, or in files of the run's folder so that a stopped run goes on where it was.

What is kept is decided by a budget: all tokens in float32, in float16 where only that fits, or not at all, in which case every
epoch runs the model again. Vectors of one per item are small and come first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.errors import UnknownNameError
from layerscope.probing.reading import ModelReader, OnePooling
from layerscope.probing.states import FreshStates, KeptStates, States
from layerscope.probing.work import Parts
from layerscope.progress import Progress
from layerscope.store import atomic

DEFAULT_BUDGET = 4 * 2**30
KEEPS = ("auto", "float32", "float16", "none")
_PARTS = 25  # a run that is stopped repeats at most one of this many parts
_GPU_SHARE = 0.6


@dataclass(frozen=True)
class Plan:
    """How each pooling is kept: float32, float16 or none (computed anew), and the bytes that it takes."""

    how: dict[str, str]
    bytes: int

    def facts(self) -> dict[str, Any]:
        """For the manifest."""
        return {"states": dict(self.how), "bytes": self.bytes}


def plan_keeping(poolings: Sequence[str], layers: int, lengths: Sequence[int], width: int, keep: str, budget: int) -> Plan:
    """Decide what to keep; `keep` other than `auto` is taken at its word."""
    if keep not in KEEPS:
        raise UnknownNameError("way to keep states", keep, KEEPS)
    how: dict[str, str] = {}
    used = 0
    for pooling in sorted(poolings, key=lambda p: p == "tokens"):  # small ones first
        tokens = max(lengths) if pooling == "tokens" else 1
        numbers = layers * len(lengths) * tokens * width
        fits = [kind for kind, size in (("float32", 4), ("float16", 2)) if used + numbers * size <= budget]
        # a pooled vector is always kept whole: half precision would save little
        wanted = keep if keep != "auto" and pooling == "tokens" else ((fits or ["none"])[0] if pooling == "tokens" else "float32")
        how[pooling] = wanted
        used += numbers * {"float32": 4, "float16": 2, "none": 0}[wanted]
    return Plan(how, used)


class Keeper:
    """Runs the model once over all items and keeps what the plan says."""

    def __init__(self, reader: ModelReader, plan: Plan, items: int, folder: Path | None, elsewhere: Parts | None = None) -> None:
        """`items` are numbered in a random order: the first of them, which set float16's scale, are like all others.

        `elsewhere` reads parts of the items instead of `reader`: by an engine's workers, say.
        """
        self.reader, self.plan, self.folder, self.elsewhere = reader, plan, folder, elsewhere
        self.order = np.arange(items)
        self._stores: dict[str, Tensor] = {}
        self._halves: dict[str, tuple[Tensor, Tensor]] = {}
        self._files: list[np.memmap] = []

    @property
    def kept(self) -> list[str]:
        """The poolings that are kept."""
        return [pooling for pooling, how in self.plan.how.items() if how != "none"]

    def run(self, bar: Progress) -> dict[str, States]:
        """All poolings, kept or to be computed."""
        device = self.reader.model.device
        if self.kept:
            self._fill(bar)
        lengths = torch.tensor(self.reader.source.lengths)
        ragged = int(lengths.min()) < int(lengths.max())
        out: dict[str, States] = {}
        for pooling, how in self.plan.how.items():
            if how == "none":
                out[pooling] = FreshStates(OnePooling(self.reader, pooling), device)
                continue
            store = _near(self._stores[pooling], device)
            mask = torch.arange(store.shape[2]) < lengths[:, None] if pooling == "tokens" and ragged else None
            shift, scale = self._halves.get(pooling, (None, None))
            out[pooling] = KeptStates(
                store, None if mask is None else mask.to(store.device), device, _on(shift, device), _on(scale, device)
            )
        return out

    def _fill(self, bar: Progress) -> None:
        wanted, before = self.reader.poolings, self._resumed()
        self.reader.poolings = self.kept
        try:
            for pooling in self.kept:
                self._stores[pooling] = self._store(pooling)
            size = math.ceil(len(self.order) / min(_PARTS, len(self.order)))
            bar.begin(f"{self.reader.model.name}|items", len(self.order), before)
            starts = range(before, len(self.order), size)
            parts = [self.order[start : start + size] for start in starts]
            read = map(self.reader.read_all, parts) if self.elsewhere is None else self.elsewhere(parts, self.kept)
            for start, part, found in zip(starts, parts, read, strict=True):
                for pooling, (states, _) in found.items():
                    self._put(pooling, start, states)
                self._note(start + len(part))
                bar.advance(len(part))
        finally:
            self.reader.poolings = wanted

    def _store(self, pooling: str) -> Tensor:
        """Room for one pooling, in a file where there is a folder."""
        source = self.reader.source
        tokens = max(source.lengths) if pooling == "tokens" else 1
        shape = (len(self.reader.sites), len(self.order), tokens, self.reader.model.width)
        dtype = self.plan.how[pooling]
        if self.folder is None:
            device = self.reader.model.device
            room = device if device.type == "cuda" and _fits(shape, dtype, device) else torch.device("cpu")
            make = torch.empty if min(source.lengths) == max(source.lengths) else torch.zeros
            return make(shape, dtype=getattr(torch, dtype), device=room)
        file = self.folder / f"{pooling}.{dtype}"
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic.explained(file):
            atomic.reserve(file, math.prod(shape) * np.dtype(dtype).itemsize)
            mapped = np.memmap(file, dtype=dtype, mode="r+", shape=shape)
        self._files.append(mapped)
        return torch.from_numpy(mapped)

    def _put(self, pooling: str, start: int, states: Tensor) -> None:
        store = self._stores[pooling]
        if store.dtype == torch.float16:
            if pooling not in self._halves:
                self._halves[pooling] = self._half(pooling, states)
            shift, scale = (value.to(states.device)[:, None, None] for value in self._halves[pooling])
            states = ((states - shift) / scale).clamp(-60000, 60000)
        store[:, start : start + states.shape[1], : states.shape[2]] = states.to(store.device, store.dtype)

    def _half(self, pooling: str, states: Tensor) -> tuple[Tensor, Tensor]:
        """What float16 is stored under, per layer and feature: far from 0 it would be coarse, and beyond 65504 infinite."""
        flat = states.double().flatten(1, 2)
        found = flat.mean(1).float().cpu(), (flat.var(1, unbiased=False) + 1e-6).sqrt().float().cpu()
        if self.folder is not None:
            arrays = {"shift": found[0].numpy(), "scale": found[1].numpy()}
            atomic.write_arrays(self.folder / f"{pooling}.scale.npz", arrays)
        return found

    def _note(self, done: int) -> None:
        if self.folder is None:
            return
        with atomic.explained(self.folder):
            for mapped in self._files:
                mapped.flush()
        atomic.write_json(self.folder / "kept.json", {"items": done, "how": self.plan.how})

    def _resumed(self) -> int:
        """How many items an earlier attempt left."""
        file = None if self.folder is None else self.folder / "kept.json"
        if file is None or not file.exists():
            return 0
        held = json.loads(file.read_text(encoding="utf-8"))
        whole = all((file.parent / f"{pooling}.{self.plan.how[pooling]}").exists() for pooling in self.kept)
        if held["how"] != self.plan.how or not whole:
            return 0
        for pooling in (p for p in self.kept if self.plan.how[p] == "float16"):
            with np.load(file.parent / f"{pooling}.scale.npz") as arrays:
                self._halves[pooling] = torch.from_numpy(arrays["shift"]), torch.from_numpy(arrays["scale"])
        return int(held["items"])


def default_budget(device: torch.device) -> int:
    """Bytes of states to keep where nothing is said: 4 GiB, or most of a GPU's free memory."""
    return DEFAULT_BUDGET if device.type != "cuda" else int(_GPU_SHARE * torch.cuda.mem_get_info(device)[0])


def _near(store: Tensor, device: torch.device) -> Tensor:
    """On the GPU where there is room for it, else where it is."""
    if device.type != "cuda" or store.device.type == "cuda" or not _fits(tuple(store.shape), str(store.dtype), device):
        return store
    return store.to(device)


def _fits(shape: tuple[int, ...], dtype: str, device: torch.device) -> bool:
    free, _ = torch.cuda.mem_get_info(device)
    return math.prod(shape) * (2 if "16" in dtype else 4) <= _GPU_SHARE * free


def _on(value: Tensor | None, device: torch.device) -> Tensor | None:
    return None if value is None else value.to(device)
