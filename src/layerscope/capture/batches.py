"""Length buckets, batches under a token budget, and halving on out-of-memory without losing
work."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layerscope.errors import LayerscopeError
from layerscope.spectra import free_memory, to_device

__all__ = ["is_out_of_memory", "release_memory"]

CPU_TOKENS = 4096  # more gains nothing on a CPU and costs memory
GPU_TOKENS = 65536  # at least
# Rows of a product that keep one multiprocessor busy for a round, in tiles of 256 x 128 of states
# 1,024 wide; of wider ones it is a few rounds. A batch is a whole number of rounds: the last one
# takes as long with half of the tiles.
_ROWS_PER_ROUND = 32
# Of what is free on a GPU, for vectors that wait there: batches and metrics need the rest.
_SHARE_OF_MEMORY = 0.45


@dataclass(frozen=True)
class Batch:
    """Token ids of some texts, padded on the right. `mask` is None where no text is shorter than
    the longest.

    The first `skip` tokens are not read; with `pool_class` the first token stands for an item
    instead of the mean over what is read. A model that takes another input has a subclass that
    holds it.
    """

    input_ids: Tensor
    mask: Tensor | None
    lengths: list[int]
    skip: int = 0
    pool_class: bool = False

    @property
    def whole_mask(self) -> Tensor:
        """The mask as models take it; ones where nothing is padded."""
        return torch.ones_like(self.input_ids) if self.mask is None else self.mask.long()


def make_batch(
    ids: Sequence[Sequence[int] | np.ndarray], pad_id: int, device: torch.device | str = "cpu"
) -> Batch:
    """Pad token ids into one batch, on the right, which is exact for every family."""
    lengths = [len(row) for row in ids]
    width = max(lengths)
    tokens = np.full((len(ids), width), pad_id, dtype=np.int64)
    for i, row in enumerate(ids):
        tokens[i, : len(row)] = row
    there = to_device(torch.from_numpy(tokens), device)
    if min(lengths) == width:
        return Batch(there, None, lengths)
    mask = torch.arange(width) < torch.tensor(lengths).unsqueeze(-1)
    return Batch(there, to_device(mask, device), lengths)


def plan_batches(lengths: Sequence[int], tokens: int, most: int | None = None) -> list[list[int]]:
    """Group texts of similar length so that batch size × longest text stays within `tokens`.

    >>> plan_batches([3, 9, 3, 10], tokens=20)
    [[3, 1], [0, 2]]
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    batches: list[list[int]] = []
    limit = 0  # items of the batch that is filled
    for i in order:
        if batches and len(batches[-1]) < limit:
            batches[-1].append(i)
            continue
        batches.append([i])
        limit = tokens // max(1, lengths[i])
        limit = limit if most is None else min(limit, most)
    return batches


def token_budget(device: torch.device, width: int) -> int:
    """Return the tokens of a batch on a device: fixed on a CPU, from the free memory on a GPU."""
    if device.type != "cuda":
        return CPU_TOKENS
    per_token = width * 64  # bytes: one block's activations are 26 in half precision, 52 in float32
    processors = int(torch.cuda.get_device_properties(device).multi_processor_count)
    in_round = _ROWS_PER_ROUND * processors
    limit = min(-(-GPU_TOKENS // in_round) * in_round, int(0.5 * free_memory(device) / per_token))
    return max(512, limit // in_round * in_round or limit)


def fits_on_device(device: torch.device, vectors: int, width: int) -> bool:
    """Return True if so many vectors may stay on a GPU until more work is done."""
    return device.type == "cuda" and vectors * width * 4 <= _SHARE_OF_MEMORY * free_memory(device)


def release_memory() -> None:
    """Give back what an attempt that ran out of memory has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for an error that says that memory ran out, on any device."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )


def run_batches(
    lengths: Sequence[int],
    process: Callable[[list[int]], None],
    tokens: int,
    most: int | None = None,
) -> int:
    """Call `process` with lists of item indices until every item is done; returns the token budget
    that worked.

    A batch that runs out of memory is split in two and tried again; `process` must leave no trace
    of a batch that failed.
    """
    queue = deque(plan_batches(lengths, tokens, most))
    while queue:
        batch = queue.popleft()
        try:
            process(batch)
            continue
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(batch) == 1:
                raise LayerscopeError(
                    f"out of memory on a single text of {lengths[batch[0]]} tokens. "
                    "Use a smaller max_length=, a smaller dtype, or another device."
                ) from error
        release_memory()
        half = len(batch) // 2
        tokens = half * lengths[batch[0]]
        waiting = [i for later in queue for i in later]
        planned = plan_batches([lengths[i] for i in waiting], tokens, most)
        queue = deque([batch[:half], batch[half:]])
        queue.extend([waiting[j] for j in numbers] for numbers in planned)
    return tokens
