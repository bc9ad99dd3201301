"""Shards of a run on a GPU: kept where they were computed if nothing is to be left on disk, else written behind its back."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import torch

from layerscope.store import Shard, ShardStore

_SHARE_OF_MEMORY = 0.3  # of what is free: the metrics need the rest


class HeldShards:
    """As `ShardStore`, in memory: nothing of it outlives the run."""

    def __init__(self) -> None:
        self._shards: dict[int, Shard] = {}

    def has(self, index: int) -> bool:
        """Whether a shard is finished."""
        return index in self._shards

    def write(self, index: int, shard: Shard) -> None:
        """Keep a finished shard."""
        self._shards[index] = shard

    def read(self, index: int) -> Shard:
        """A finished shard."""
        return self._shards[index]


class WriteBehind:
    """Writes shards to a store while the next is computed: a GPU does not wait for the disk. Use it as a context.

    One shard at most is on its way; an error in writing it is raised by the next call, or at the end.
    """

    def __init__(self, store: ShardStore | HeldShards) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layerscope-writing")
        self._last: Future[None] | None = None

    def __call__(self, index: int, shard: Shard) -> None:
        self._wait()
        self._last = self._thread.submit(self._store.write, index, shard)

    def _wait(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._wait()
        finally:
            self._thread.shutdown()


def fits(device: torch.device, vectors: int, width: int) -> bool:
    """Whether so many pooled vectors may stay on a device until the run is done."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return vectors * width * 4 <= _SHARE_OF_MEMORY * free
