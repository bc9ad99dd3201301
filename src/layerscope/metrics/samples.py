"""Containers of samples that accumulators share: per-prompt values, pooled vectors, pooled vectors of views.

They keep blocks as they came (a block may be a memory-mapped array: nothing is copied until it is read) and put them into a
canonical order, so that batches, their order and merges do not matter. Order only matters where random draws meet
samples (permutations, resamples): it follows `keys` where given (a hash of each text, say), else the values themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics.jackknife import n_folds

BLOCK_ROWS = 4096


def _array(values: Any, ndim: int) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values  # numpy has no bfloat16
    array = np.asarray(values)
    if array.ndim != ndim:
        raise ValueError(f"expected an array with {ndim} dimensions, got shape {array.shape}")
    return array


def _keys(keys: Any, n: int) -> np.ndarray | None:
    if keys is None:
        return None
    array = _array(keys, 1)
    if len(array) != n:
        raise ValueError(f"{len(array)} keys for {n} prompts")
    return array


class PromptValues:
    """One number per prompt, with the number of rows (tokens) behind it."""

    def __init__(self, width: int | None = None) -> None:
        self.width = width
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []

    def update(self, values: Any, tokens: Any, keys: Any = None, width: int | None = None) -> None:
        """Add per-prompt `values` (NaN: undefined) computed from `tokens` rows each."""
        self.width = width if width is not None else self.width
        block = _array(values, 1).astype(np.float64)
        self._blocks.append((block, _array(tokens, 1).astype(np.int64), _keys(keys, len(block))))

    def merge(self, other: PromptValues) -> None:
        """Add another container's prompts."""
        self.width = self.width if self.width is not None else other.width
        self._blocks += other._blocks

    def __len__(self) -> int:
        return sum(len(b[0]) for b in self._blocks)

    def ordered(self) -> tuple[np.ndarray, np.ndarray]:
        """(values, tokens) in canonical order."""
        if not self._blocks:
            return np.empty(0), np.empty(0, dtype=np.int64)
        values = np.concatenate([b[0] for b in self._blocks])
        tokens = np.concatenate([b[1] for b in self._blocks])
        keyed = all(b[2] is not None for b in self._blocks)
        order = np.argsort(np.concatenate([b[2] for b in self._blocks]), kind="stable") if keyed else np.argsort(values)
        return values[order], tokens[order]


class _Vectors:
    """Blocks of vectors with keys; the base of `PooledRows` and `ViewRows`."""

    ndim: int

    def __init__(self) -> None:
        self._blocks: list[tuple[np.ndarray, np.ndarray | None]] = []
        self._memo: dict[Any, Any] = {}

    def update(self, vectors: Any, keys: Any = None) -> None:
        """Add vectors, one per prompt along the first axis."""
        block = _array(vectors, self.ndim)
        self._check_shape(block)
        self._blocks.append((block, _keys(keys, len(block))))
        self._memo.clear()

    def _check_shape(self, block: np.ndarray) -> None:
        if self._blocks and block.shape[1:] != self._blocks[0][0].shape[1:]:
            raise ValueError(f"vectors of shape {block.shape[1:]} do not fit those so far {self._blocks[0][0].shape[1:]}")

    def merge(self, other: Any) -> None:
        """Add another container's vectors."""
        for block, _ in other._blocks[:1]:
            self._check_shape(block)
        self._blocks += other._blocks
        self._memo.clear()

    def __len__(self) -> int:
        return sum(len(b[0]) for b in self._blocks)

    @property
    def width(self) -> int:
        """D, the size of one vector."""
        return int(self._blocks[0][0].shape[-1]) if self._blocks else 0

    def order(self) -> np.ndarray:
        """Positions of the samples (in order of arrival) that put them into canonical order."""
        if "order" not in self._memo:
            if all(keys is not None for _, keys in self._blocks):
                sort = np.concatenate([keys for _, keys in self._blocks]) if self._blocks else np.empty(0)
                self._memo["order"] = np.argsort(sort, kind="stable")
            else:
                self._memo["order"] = self._order_by_values()
        return self._memo["order"]

    def _order_by_values(self) -> np.ndarray:
        """By the first few coordinates, which nearly always tell vectors apart; where they do not, by all of them."""
        heads = np.concatenate([b.reshape(len(b), -1)[:, :8] for b, _ in self._blocks])
        order = np.lexsort(heads.T[::-1])
        if (heads[order][1:] == heads[order][:-1]).all(-1).any():
            whole = np.concatenate([b.reshape(len(b), -1) for b, _ in self._blocks])
            order = np.lexsort(whole.T[::-1])
        return order

    def blocks(self, whole: int | None = None) -> Iterator[Tensor]:
        """Float64 blocks in order of arrival: for what does not depend on order.

        With `whole`, blocks hold whole groups of that many rows (the last may be short), whatever the batches were.
        """
        rest: Tensor | None = None
        for block, _ in self._blocks:
            for start in range(0, len(block), BLOCK_ROWS):
                part = torch.from_numpy(np.array(block[start : start + BLOCK_ROWS], dtype=np.float64))
                if whole is None:
                    yield part
                    continue
                part = part if rest is None else torch.cat([rest, part])
                cut = len(part) // whole * whole
                if cut:
                    yield part[:cut]
                rest = part[cut:]
        if rest is not None and len(rest):
            yield rest

    def all(self) -> Tensor:
        """Everything, float64, in canonical order."""
        whole = np.concatenate([np.asarray(b, dtype=np.float64) for b, _ in self._blocks])
        return torch.from_numpy(whole[self.order()])

    def fold(self, index: int) -> Tensor:
        """The samples of one fold, float64: every `n_folds`-th in canonical order. Only they are read."""
        folds = n_folds(len(self))
        rank = np.empty(len(self), dtype=np.int64)
        rank[self.order()] = np.arange(len(self))
        parts, start = [], 0
        for block, _ in self._blocks:
            chosen = np.flatnonzero(rank[start : start + len(block)] % folds == index)
            parts.append(np.asarray(block[chosen], dtype=np.float64))
            start += len(block)
        return torch.from_numpy(np.concatenate(parts))

    def to_canonical(self, per_sample: np.ndarray) -> np.ndarray:
        """Numbers in order of arrival, put into canonical order."""
        return per_sample[self.order()]


class PooledRows(_Vectors):
    """One pooled vector per prompt: blocks (n, D)."""

    ndim = 2


class ViewRows(_Vectors):
    """Pooled vectors of Q views per prompt: blocks (n, Q, D)."""

    ndim = 3

    @property
    def n_views(self) -> int:
        """Q, the number of views."""
        return int(self._blocks[0][0].shape[1]) if self._blocks else 0

    def view(self, index: int) -> Tensor:
        """The pooled vectors of one view (N, D), float64, in canonical order."""
        whole = np.concatenate([np.asarray(b[:, index], dtype=np.float64) for b, _ in self._blocks])
        return torch.from_numpy(whole[self.order()])

    def need_views(self, at_least: int, metric: str) -> None:
        """A ValueError unless there are enough views and prompts for a metric that compares them."""
        if len(self) < 2 or self.n_views < at_least:
            raise ValueError(
                f"{metric} compares at least 2 prompts in at least {at_least} views; "
                f"got {len(self)} prompts in {self.n_views} views"
            )
