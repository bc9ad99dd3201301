"""Containers of samples that accumulators share: per-prompt values, pooled vectors, pooled vectors
of views.

They keep blocks as they came (a block may be a memory-mapped array: nothing is copied until it is
read) and put them into a canonical order, so that batches and their order do not matter.
Order only matters where random draws meet samples (permutations, resamples, folds): it follows
`keys` where given (a hash of each text, say), else the values, shuffled.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from layerscope.spectra import to_device

__all__ = ["FOLDS", "PooledRows", "PromptValues", "ViewRows"]

BLOCK_ROWS = 4096
# Blocks are shards of 32 prompts on a CPU, 512 on a GPU. A step of a sum over blocks takes hardly
# less for so few rows than for many: blocks are joined up to so many numbers.
_JOINED_NUMBERS = {"cpu": 2**19, "cuda": 2**22}

# Standard errors of spectral quantities leave out one fold of prompts at a time. A spectrum is far
# from linear in the weight of one prompt when N ≤ D, and a resample with replacement has a lower
# rank than the data; leaving prompts out has neither fault (docs/decisions/intervals.md). Prompts
# go to folds by their canonical order, so batches do not matter.
FOLDS = 20


def n_folds(n: int) -> int:
    """How many folds n prompts are split into: each is left out once. A single prompt cannot be
    left out."""
    return min(FOLDS, n) if n > 1 else 0


def _array(values: Any, ndim: int) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (
            values.float() if values.dtype == torch.bfloat16 else values
        )  # numpy has no bfloat16
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
        self._ordered: tuple[np.ndarray, np.ndarray] | None = None
        self._sizes: tuple[np.ndarray, np.ndarray] | None = None
        self._sorted_keys: np.ndarray | None = None
        self._blocks: list[tuple[np.ndarray, np.ndarray, np.ndarray | None]] = []

    def update(self, values: Any, tokens: Any, keys: Any = None, width: int | None = None) -> None:
        """Add per-prompt `values` (NaN: undefined) computed from `tokens` rows each."""
        self.width = width if width is not None else self.width
        self._ordered = self._sizes = self._sorted_keys = None
        block = _array(values, 1).astype(np.float64)
        self._blocks.append((block, _array(tokens, 1).astype(np.int64), _keys(keys, len(block))))

    def __len__(self) -> int:
        return sum(len(b[0]) for b in self._blocks)

    def ordered(self) -> tuple[np.ndarray, np.ndarray]:
        """(values, tokens) in canonical order."""
        if self._ordered is None:
            self._ordered = self._sorted()
        return self._ordered

    def sizes(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of rows that occur, and which of them each prompt has, in canonical order."""
        if self._sizes is None:
            self._sizes = np.unique(self.ordered()[1], return_inverse=True)
        return self._sizes

    def with_values(self, values: np.ndarray) -> PromptValues:
        """The same prompts with other values, given in canonical order: nothing is sorted or
        counted again."""
        tokens, sizes = self.ordered()[1], self.sizes()
        values = _array(values, 1).astype(np.float64, copy=False)
        if len(values) != len(tokens):
            raise ValueError(f"{len(values)} values for {len(tokens)} prompts")
        if self._sorted_keys is None and all(b[2] is not None for b in self._blocks):
            self._sorted_keys = (
                np.sort(np.concatenate([b[2] for b in self._blocks])) if self._blocks else None
            )
        other = PromptValues(self.width)
        other._blocks = [(values, tokens, self._sorted_keys)]
        other._ordered, other._sizes, other._sorted_keys = (
            (values, tokens),
            sizes,
            self._sorted_keys,
        )
        return other

    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        if not self._blocks:
            return np.empty(0), np.empty(0, dtype=np.int64)
        values = np.concatenate([b[0] for b in self._blocks])
        tokens = np.concatenate([b[1] for b in self._blocks])
        keyed = all(b[2] is not None for b in self._blocks)
        order = (
            np.argsort(np.concatenate([b[2] for b in self._blocks]), kind="stable")
            if keyed
            else np.argsort(values)
        )
        return values[order], tokens[order]


def _is_read_later(vectors: Any) -> bool:
    """Whether vectors are in a file and are read when asked for: they have a shape but are not an
    array."""
    return (
        not isinstance(vectors, (Tensor, np.ndarray))
        and hasattr(vectors, "__array__")
        and hasattr(vectors, "shape")
    )


def _flat(block: Any) -> Any:
    block = np.asarray(block) if _is_read_later(block) else block
    return block.reshape(len(block), -1)


def _doubles(block: np.ndarray | Tensor) -> Tensor:
    """A copy in float64, on the block's device."""
    return (
        block.double()
        if isinstance(block, Tensor)
        else torch.from_numpy(np.array(block, dtype=np.float64))
    )


def _concatenated(parts: list[np.ndarray | Tensor]) -> np.ndarray | Tensor:
    """Parts of one kind, one after the other; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return (
        torch.cat(tensors)
        if len(tensors) == len(parts)
        else np.concatenate([np.asarray(part) for part in parts])
    )


class _Vectors:
    """Blocks of vectors with keys; the base of `PooledRows` and `ViewRows`."""

    ndim: int

    def __init__(self) -> None:
        self._blocks: list[tuple[np.ndarray | Tensor, np.ndarray | None]] = []
        self._memo: dict[Any, Any] = {}
        self._by_keys: dict[Any, Any] = {}  # what follows from the order of the prompts alone

    def update(self, vectors: Any, keys: Any = None) -> None:
        """Add vectors, one per prompt along the first axis. Those on a GPU stay there, and are
        measured there."""
        on_gpu = isinstance(vectors, Tensor) and vectors.is_cuda and vectors.ndim == self.ndim
        if _is_read_later(vectors) and vectors.ndim == self.ndim:
            block = vectors
        else:
            block = vectors.detach() if on_gpu else _array(vectors, self.ndim)
        self._check_shape(block)
        self._blocks.append((block, _keys(keys, len(block))))
        self._memo, self._by_keys = {}, {}

    def _check_shape(self, block: np.ndarray | Tensor) -> None:
        if self._blocks and block.shape[1:] != self._blocks[0][0].shape[1:]:
            raise ValueError(
                f"vectors of shape {block.shape[1:]} do not fit those so far {self._blocks[0][0].shape[1:]}"
            )

    def share_order(self, shared: dict[Any, Any]) -> None:
        """Cache in `shared` whatever depends on the keys alone, for vectors of the same prompts in
        the same blocks."""
        lengths = [len(block) for block, _ in self._blocks]
        if shared.setdefault("blocks", lengths) != lengths or any(
            keys is None for _, keys in self._blocks
        ):
            raise ValueError(
                "the vectors are not those of the same prompts by key, or came in other blocks"
            )
        self._by_keys = shared

    def __len__(self) -> int:
        return sum(len(b[0]) for b in self._blocks)

    @property
    def width(self) -> int:
        """D, the size of one vector."""
        return int(self._blocks[0][0].shape[-1]) if self._blocks else 0

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        first = self._blocks[0][0] if self._blocks else None
        return first.device if isinstance(first, Tensor) else torch.device("cpu")

    @property
    def on_gpu(self) -> bool:
        """Whether work is better done for many folds and sites together than piece by piece."""
        return self.device.type == "cuda"

    def order(self) -> np.ndarray:
        """Positions of the samples (in order of arrival) that put them into canonical order."""
        if "order" not in self._by_keys:
            if all(keys is not None for _, keys in self._blocks):
                sort = (
                    np.concatenate([keys for _, keys in self._blocks])
                    if self._blocks
                    else np.empty(0)
                )
                self._by_keys["order"] = np.argsort(sort, kind="stable")
            else:
                self._by_keys["order"] = self._order_by_values()
        return self._by_keys["order"]

    def _order_by_values(self) -> np.ndarray:
        """By the first few coordinates, which nearly always tell vectors apart; where they do not,
        by all of them. Then shuffled.

        Folds take every so-manyth sample. In the order of a coordinate that dominates, each fold
        would hold the same mix of it, far more alike than folds of independent samples are, and
        intervals would come out too narrow. The shuffle follows the ranks of another coordinate:
        one shuffle for all data would be a lucky or unlucky one for all of them.
        """
        heads = np.concatenate([_array(_flat(b)[:, :8], 2) for b, _ in self._blocks])
        order = np.lexsort(heads.T[::-1])
        if (heads[order][1:] == heads[order][:-1]).all(-1).any():
            whole = np.concatenate([_array(_flat(b), 2) for b, _ in self._blocks])
            order = np.lexsort(whole.T[::-1])
        ranks = heads[order][:, -1].argsort(kind="stable")
        return order[
            np.random.default_rng([len(order), zlib.crc32(ranks.tobytes())]).permutation(len(order))
        ]

    def with_vectors(self, vectors: Tensor) -> Self:
        """The same samples with other vectors, given in order of arrival."""
        made = type(self)()
        made._blocks = [(vectors, None)]
        made._by_keys = {"order": self.order()}
        return made

    def blocks(self) -> Iterator[Tensor]:
        """Float64 blocks in order of arrival: for what does not depend on order."""
        return map(_doubles, self._joined())

    def _joined(self) -> Iterator[np.ndarray | Tensor]:
        """The vectors as they came, in pieces of at most `BLOCK_ROWS`; small blocks that follow
        each other are one piece."""
        waiting: list[np.ndarray | Tensor] = []
        rows = 0
        for block, _ in self._blocks:
            numbers = max(1, math.prod(block.shape[1:]))
            most = min(BLOCK_ROWS, _JOINED_NUMBERS.get(self.device.type, 0) // numbers)
            for start in range(0, len(block), BLOCK_ROWS):
                part = block[start : start + BLOCK_ROWS]
                if waiting and rows + len(part) > most:
                    yield _concatenated(waiting)
                    waiting, rows = [], 0
                waiting.append(part)
                rows += len(part)
        if waiting:
            yield _concatenated(waiting)

    def all(self) -> Tensor:
        """Everything, float64, in canonical order."""
        return self._in_order([b for b, _ in self._blocks])

    def _in_order(self, blocks: list[np.ndarray | Tensor]) -> Tensor:
        if self.device.type == "cpu":
            whole = np.concatenate([np.asarray(b, dtype=np.float64) for b in blocks])
            return torch.from_numpy(whole[self.order()])
        return torch.cat([_doubles(b) for b in blocks])[self._order_there()]

    def _order_there(self) -> Tensor:
        """The canonical order, where the vectors are."""
        if ("order", self.device) not in self._by_keys:
            self._by_keys["order", self.device] = to_device(
                torch.from_numpy(self.order()), self.device
            )
        return self._by_keys["order", self.device]

    def _fold_numbers(self) -> np.ndarray:
        """The fold of each sample in order of arrival: every `n_folds`-th in canonical order is in
        the same one."""
        if "folds" not in self._by_keys:
            rank = np.empty(len(self), dtype=np.int64)
            rank[self.order()] = np.arange(len(self))
            self._by_keys["folds"] = (rank % n_folds(len(self))).astype(np.int8)
        return self._by_keys["folds"]

    def fold_blocks(self, index: int) -> Iterator[Tensor]:
        """The samples of one fold, float64, a block at a time. Only they are read."""
        numbers, start = self._fold_numbers(), 0
        for block, _ in self._blocks:
            chosen = np.flatnonzero(numbers[start : start + len(block)] == index)
            for first in range(0, len(chosen), BLOCK_ROWS):
                some = chosen[first : first + BLOCK_ROWS]
                yield _doubles(
                    block[
                        torch.from_numpy(some).to(block.device)
                        if isinstance(block, Tensor)
                        else some
                    ]
                )
            start += len(block)

    def blocks_by_fold(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Float64 blocks in order of arrival, each with the rows of every fold in it."""
        start = 0
        for z in self.blocks():
            yield z, self._members(start, len(z), z.device)
            start += len(z)

    def _members(self, start: int, count: int, device: torch.device) -> list[Tensor]:
        """The rows of every fold among `count` samples, in order of arrival."""
        key = ("members", start, count, device)
        if key in self._by_keys:
            return self._by_keys[key]
        here = self._fold_numbers()[start : start + count]
        members = [
            torch.from_numpy(np.flatnonzero(here == k)).to(device)
            for k in range(n_folds(len(self)))
        ]
        if (
            device.type == "cuda"
        ):  # sent there once for all sites; here there may be many small blocks
            self._by_keys[key] = members
        return members

    def to_canonical(self, per_sample: np.ndarray) -> np.ndarray:
        """Numbers in order of arrival, put into canonical order."""
        return per_sample[self.order()]


class PooledRows(_Vectors):
    """One pooled vector per prompt: blocks (n, D)."""

    ndim = 2


def stacked(
    many: Sequence[_Vectors], view: int | None = None, places: Tensor | None = None
) -> Tensor:
    """The vectors of several data of as many rows each (B, N, D), float64, in canonical order; of
    views, those of one of them.

    With `places`, in another order: those of the canonical one.
    """
    first = many[0]
    if not first.on_gpu or any(data._by_keys is not first._by_keys for data in many):
        whole = torch.stack(
            [
                data._in_order(
                    [block if view is None else block[:, view] for block, _ in data._blocks]
                )
                for data in many
            ]
        )
        return whole if places is None else whole[:, places]
    # one order for all (`share_order`): few large copies, where a GPU waits longer for a small one
    # than it takes
    groups = zip(*(data._blocks for data in many), strict=True)
    blocks = [
        torch.stack([torch.as_tensor(b if view is None else b[:, view]) for b, _ in group])
        for group in groups
    ]
    order = first._order_there()
    return torch.cat(blocks, dim=1)[:, order if places is None else order[places]].double()


class ViewRows(_Vectors):
    """Pooled vectors of Q views per prompt: blocks (n, Q, D)."""

    ndim = 3

    @property
    def n_views(self) -> int:
        """Q, the number of views."""
        return int(self._blocks[0][0].shape[1]) if self._blocks else 0

    def view(self, index: int) -> Tensor:
        """The pooled vectors of one view (N, D), float64, in canonical order."""
        return self._in_order([b[:, index] for b, _ in self._blocks])

    def need_views(self, at_least: int, metric: str) -> None:
        """A ValueError unless there are enough views and prompts for a metric that compares
        them."""
        if len(self) < 2 or self.n_views < at_least:
            raise ValueError(
                f"{metric} compares at least 2 prompts in at least {at_least} views; "
                f"prompts given: {len(self)}, views: {self.n_views}"
            )
