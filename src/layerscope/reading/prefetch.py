"""Rows of shards and their views, read in the background where a GPU would have to wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import numpy as np

from layerscope.models.inputs import ItemReader, Row, ViewRows, ViewSettings
from layerscope.reading.plan import Plan, read_rows

_AHEAD = 2  # shards


class Prefetcher:
    """Reads shards in threads, a few ahead of the one that is asked for. Use it as a context.

    Items and views are read by a thread each: items can be run before their views are there. Shards may be added to a plan that
    grows.
    """

    def __init__(self, reader: ItemReader, plan: Plan, shards: Sequence[np.ndarray], views: ViewSettings) -> None:
        self.reader, self.view_settings = reader, views
        self._order: dict[int, int] = {}
        self._shards: list[np.ndarray] = []
        self._rows: dict[int, Future[Sequence[Row]]] = {}
        self._views: dict[int, Future[ViewRows]] = {}
        self._views_requested = self._views_given = 0
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"layerscope-prefetch-{what}") for what in ("items", "views")]
        if views.count:
            reader.start_views(views, sum(len(shard) for shard in shards))
        self.add(plan, shards)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        self.reader.stop_views()

    def add(self, plan: Plan, shards: Sequence[np.ndarray]) -> None:
        """More shards to read, of a plan that holds those so far."""
        self.plan = plan
        for shard in shards:
            self._order[int(shard[0])] = len(self._shards)
            self._shards.append(shard)
        self._request_views()

    def _request_rows(self, index: int) -> None:
        if self.plan.rows is None and index not in self._rows:
            self._rows[index] = self._threads[0].submit(read_rows, self.reader, self.plan, self._shards[index])

    def _rows_of(self, index: int) -> Sequence[Row]:
        """Rows that the plan holds are at hand."""
        pending = self._rows.get(index)
        return read_rows(self.reader, self.plan, self._shards[index]) if pending is None else pending.result()

    def _request_views(self) -> None:
        upto = min(self._views_given + 1 + _AHEAD, len(self._shards)) if self.view_settings.count else 0
        for index in range(self._views_requested, upto):
            self._request_rows(index)
            self._views[index] = self._threads[1].submit(self._read_views, index)
        self._views_requested = max(self._views_requested, upto)

    def _read_views(self, index: int) -> ViewRows:
        return self.reader.read_views(self._shards[index], self._rows_of(index), self.view_settings)

    def rows(self, shard: np.ndarray) -> Sequence[Row]:
        """The rows of a shard's items; those of the shards after it are requested."""
        index = self._order[int(shard[0])]
        for i in range(index, min(index + 1 + _AHEAD, len(self._shards))):
            self._request_rows(i)
        rows = self._rows_of(index)
        if not self.view_settings.count:
            self._rows.pop(index, None)
        return rows

    def has_views(self, shard: np.ndarray) -> bool:
        """Whether a shard's views are there already."""
        pending = self._views.get(self._order[int(shard[0])])
        return pending is not None and pending.done()

    def views(self, shard: np.ndarray) -> ViewRows:
        """The rows of a shard's views; the shard is forgotten after this."""
        index = self._order[int(shard[0])]
        self._views_given = max(self._views_given, index + 1)
        self._request_views()
        views = self._views.pop(index).result()
        self._rows.pop(index, None)
        return views

    def end_views(self) -> None:
        """End the processes that make views, once all have been read: while a GPU still works, nobody waits for that."""
        self.reader.stop_views()
