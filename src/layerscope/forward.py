"""From items to reduced states: plan the items, read them ahead, run the model on batches, keep
what a reduction keeps.

Every reading of states goes through here. `make_plan` says which items are read, in which shards;
`Prefetcher` reads their rows in the background where a GPU would have to wait for them;
`BatchRunner` runs the model on batches of similar length and hands each to a reduction. A reduction
runs the model under its hooks and keeps what it is for: `capture.Reducer` pooled vectors and token
measures (for profiles), `capture.pooling.Pooler` every kind of pooling (for evaluations), the
states of all tokens (for probes). `read_states` shows the states themselves to callers that need
something else of them (studies).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
from torch import Tensor

from layerscope.capture import Batch, Capture, FinalNorm, Site, run_batches, token_budget
from layerscope.errors import DataError
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Part, Row, ViewInputs, ViewSettings

__all__ = ["BatchRunner", "read_states"]


class BatchRunner:
    """Makes batches for a model, and remembers how many tokens of a batch fit in memory.

    Which items share a batch decides the last digits of their states: every reading batches by the
    same rules.
    """

    def __init__(self, model: LoadedModel, batch_size: int | None = None) -> None:
        self.model, self.batch_size = (
            model,
            1 if getattr(model, "one_at_a_time", False) else batch_size,
        )
        self.tokens = token_budget(model.device, model.width)

    def run(self, rows: Sequence[Row], reduce: Callable[[list[int], Batch], None]) -> None:
        """Call `reduce(numbers, batch)` until every row has been in a batch; the numbers say which
        rows.

        A batch that does not fit in memory is split and tried again: `reduce` must leave no trace
        of a batch that failed.
        """
        self.run_lengths(
            self.model.lengths(rows),
            lambda numbers: self.model.make_batch([rows[i] for i in numbers]),
            reduce,
        )

    def run_lengths(
        self,
        lengths: Sequence[int],
        make: Callable[[list[int]], Batch],
        reduce: Callable[[list[int], Batch], None],
    ) -> None:
        """The same for items that are read when their batch is made: `make(numbers)` gives the
        batch."""
        self.tokens = run_batches(
            lengths, lambda numbers: reduce(numbers, make(numbers)), self.tokens, self.batch_size
        )
        self.model.check_files()


Look = Callable[[list[int], Batch, int, Tensor, Tensor], None]
"""`look(numbers, batch, site, raw states, states)` sees the states (rows, tokens, width) of some
rows at one site."""


def read_states(
    model: LoadedModel,
    rows: Sequence[Row],
    sites: Sequence[Site],
    final_norm: FinalNorm,
    look: Look,
    batch_size: int | None = None,
) -> None:
    """Run rows through a model and show every site's states; nothing of them is kept beyond `look`.

    For what no reduction of `capture` does. Rows come in batches of similar length, not in the
    order given: `numbers` says which they are.
    """
    now: tuple[list[int], Batch] | None = None

    def show(site: int, raw: Tensor, state: Tensor) -> None:
        assert now is not None
        look(*now, site, raw, state)

    with Capture(model.anatomy, sites, final_norm, show) as capture:

        def run(numbers: list[int], batch: Batch) -> None:
            nonlocal now
            now = (numbers, batch)
            capture.run(lambda: model.run(batch))

        BatchRunner(model, batch_size).run(rows, run)


_SHARD_BYTES = {"cpu": 96 * 2**20, "cuda": 256 * 2**20}
# What is run first, while the other items are looked at: a GPU has to do longer than the host takes
# to give it the work and go on. With views it is twice as much: the host starts the processes that
# make them, too.
_FIRST_TOKENS = 33792
_FIRST_ITEMS = (16, 264)  # at least, at most
_FIRST_SHARE = (
    8  # at least an eighth of the items: to look at the others takes longer the more there are
)
# Batches of views in the first shards: a GPU runs those of one shard while those of the next are
# made, which takes hardly less.
_FIRST_VIEWS = (1, 2, 2, 3, 4)
_USUAL_LENGTH = 128  # tokens, where there is no limit
_MOST_IN_FIRST = 40  # items of the first: a GPU has nothing to do until their views are made


@dataclass(frozen=True)
class Plan:
    """Items by number: their keys (from their content), token counts, which were cut, and the
    shards they form."""

    keys: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    no_tokens: int
    max_length: int
    shards: list[np.ndarray]
    rows: Mapping[int, Row] | None = None
    """What the model is run on, for every item, where that takes little memory."""

    @property
    def n_prompts(self) -> int:
        """Items that are read."""
        return int(sum(len(s) for s in self.shards))


def _rows_by_number(parts: Sequence[Part]) -> dict[int, Row]:
    return {
        int(number): row
        for part in parts
        for number, row in zip(part.numbers, part.rows or (), strict=True)
    }


def make_plan(reader: ItemReader, shard_size: int) -> Plan:
    """Count the tokens of all items and cut them, longest first, into shards."""
    return _plan(
        reader, shard_size, [reader.survey(np.arange(len(reader.items)))], reader.items.keys
    )


def read_rows(reader: ItemReader, plan: Plan, shard: np.ndarray) -> Sequence[Row]:
    """The rows of a shard's items."""
    return reader.read(shard) if plan.rows is None else [plan.rows[i] for i in shard]


def _first_shards(first: Part, per_batch: int, shard_size: int) -> list[np.ndarray]:
    """The items that are run first: one shard, or with views (`per_batch` items a batch) small ones
    and the others."""
    some, shards = first.numbers[first.lengths > 0], []
    for size in (batches * min(per_batch, _MOST_IN_FIRST) for batches in _FIRST_VIEWS if per_batch):
        if len(some) > size < shard_size:
            shards.append(some[:size])
            some = some[size:]
    return [*shards, *(some[i : i + shard_size] for i in range(0, len(some), shard_size))]


def _plan(
    reader: ItemReader, shard_size: int, parts: Sequence[Part], keys: np.ndarray, per_batch: int = 0
) -> Plan:
    """The plan of all items: of two parts, the first has shards of its own."""
    count = len(reader.items)
    lengths, truncated = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for part in parts:
        lengths[part.numbers], truncated[part.numbers] = part.lengths, part.truncated
    usable = int((lengths > 0).sum())
    if not usable:
        raise DataError(
            f"the tokenizer of {reader.model.name} finds no token in any of the {count} {reader.items.kind}."
        )
    shards = []
    for part in parts:
        some = part.numbers[part.lengths > 0]
        if part is not parts[-1]:
            shards += _first_shards(part, per_batch, shard_size)
            continue
        # Longest first: memory that does not suffice is found out at once. Ties by key, so that
        # order never matters.
        order = some[np.lexsort((keys[some], -lengths[some]))]
        shards += [order[i : i + shard_size] for i in range(0, len(order), shard_size)]
    in_memory = (
        all(part.rows is not None for part in parts)
        and sum(part.size for part in parts) <= reader.most_kept
    )
    limit = int(lengths.max()) if reader.max_length is None else reader.max_length
    return Plan(
        keys,
        lengths,
        truncated,
        count - usable,
        limit,
        shards,
        _rows_by_number(parts) if in_memory else None,
    )


class EarlyPlanner:
    """A plan that is made while its first shard is run: a GPU does not wait until all items have
    been looked at. A context.

    For runs whose shards stay in memory; what a folder holds of a run is told by the numbers of
    shards, so its plan is made whole. The first shard holds the largest items: memory that does not
    suffice is found out at once, and which items they are does not depend on their order. With
    views, `per_batch` says of how many items these fill a batch.
    """

    def __init__(
        self, reader: ItemReader, shard_size: int, early: bool = True, per_batch: int = 0
    ) -> None:
        self.reader, self.shard_size, self.per_batch = reader, shard_size, per_batch
        self._first = self._survey_largest() if early else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layerscope-planning")
        self._rest: Future[Part] | None = None

    def _survey_largest(self) -> Part | None:
        enough = int(
            np.clip(_FIRST_TOKENS // (self.reader.max_length or _FIRST_TOKENS), *_FIRST_ITEMS)
        )
        every = len(self.reader.items)
        count = (
            2 * enough
            if self.per_batch
            else min(self.shard_size, max(enough, every // _FIRST_SHARE))
        )
        largest = self.reader.largest(count) if every > count + min(enough, count) else None
        first = None if largest is None else self.reader.survey(largest)
        return (
            first if first is not None and first.lengths.any() and first.rows is not None else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    @property
    def early(self) -> bool:
        """Whether there is a first shard before the whole plan."""
        return self._first is not None

    def first(self) -> Plan | None:
        """The plan of the first shard alone; None where all items must be looked at first."""
        first = self._first
        if first is None:
            return None
        nothing = np.empty(0)
        limit = self.reader.max_length or int(first.lengths.max())
        shards = _first_shards(first, self.per_batch, self.shard_size)
        return Plan(nothing, nothing, nothing, 0, limit, shards, _rows_by_number([first]))

    def start(self) -> None:
        """Look at the other items, in the background: once the GPU has a batch, since that takes
        every core there is."""
        if self._rest is None:
            first = np.arange(0) if self._first is None else self._first.numbers
            others = np.setdiff1d(np.arange(len(self.reader.items)), first, assume_unique=True)
            self._rest = self._thread.submit(self.reader.survey, others)

    def plan(self) -> Plan:
        """The whole plan, its first shard as given before."""
        self.start()
        assert self._rest is not None
        keys = self.reader.items.keys  # while texts are tokenized, which does not hold up Python
        parts = [self._rest.result()] if self._first is None else [self._first, self._rest.result()]
        return _plan(self.reader, self.shard_size, parts, keys, self.per_batch)


def items_per_batch(
    model: LoadedModel, limit: int | None, views: int, most: int | None = None
) -> int:
    """Of how many items the views fill a batch if they are all as long as they may be; at least 1.
    `most` texts are in one."""
    if not views:
        return 0
    tokens = token_budget(model.device, model.width)
    texts = tokens // (limit or _USUAL_LENGTH)
    return max(1, min(texts, most or texts) // views)


def choose_shard_size(
    device_type: str, sites: int, views: int, width: int, item_bytes: int = 0, per_batch: int = 0
) -> int:
    """Items per shard: a minute or so of work on a CPU, full batches on a GPU, and a bounded amount
    of memory.

    `item_bytes` is what one item's input takes, where that is more than a few token ids. Of
    `per_batch` items the views fill a batch on a GPU: a shard has a multiple of them, as its last
    batch would be a part of one.
    """
    room = _SHARD_BYTES.get(device_type, _SHARD_BYTES["cpu"])
    fits = room // (sites * (1 + views) * width * 4)
    if item_bytes:
        fits = min(fits, room // ((1 + views) * item_bytes))
    size = int(max(4, min(32 if device_type == "cpu" else 512, fits)))
    return size - size % per_batch if device_type == "cuda" and 0 < per_batch <= size else size


_AHEAD = 2  # shards


class Prefetcher:
    """Reads shards in threads, a few ahead of the one that is asked for. Use it as a context.

    Items and views are read by a thread each: items can be run before their views are there. Shards
    may be added to a plan that grows.
    """

    def __init__(
        self, reader: ItemReader, plan: Plan, shards: Sequence[np.ndarray], views: ViewSettings
    ) -> None:
        self.reader, self.view_settings = reader, views
        self._order: dict[int, int] = {}
        self._shards: list[np.ndarray] = []
        self._rows: dict[int, Future[Sequence[Row]]] = {}
        self._views: dict[int, Future[ViewInputs]] = {}
        self._views_requested = self._views_given = 0
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"layerscope-prefetch-{what}")
            for what in ("items", "views")
        ]
        if views.count:
            reader.start_views(views, sum(len(shard) for shard in shards))
        self.add(plan, shards)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
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
            self._rows[index] = self._threads[0].submit(
                read_rows, self.reader, self.plan, self._shards[index]
            )

    def _rows_of(self, index: int) -> Sequence[Row]:
        """Rows that the plan holds are at hand."""
        pending = self._rows.get(index)
        return (
            read_rows(self.reader, self.plan, self._shards[index])
            if pending is None
            else pending.result()
        )

    def _request_views(self) -> None:
        upto = (
            min(self._views_given + 1 + _AHEAD, len(self._shards))
            if self.view_settings.count
            else 0
        )
        for index in range(self._views_requested, upto):
            self._request_rows(index)
            self._views[index] = self._threads[1].submit(self._read_views, index)
        self._views_requested = max(self._views_requested, upto)

    def _read_views(self, index: int) -> ViewInputs:
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

    def views(self, shard: np.ndarray) -> ViewInputs:
        """The rows of a shard's views; the shard is forgotten after this."""
        index = self._order[int(shard[0])]
        self._views_given = max(self._views_given, index + 1)
        self._request_views()
        views = self._views.pop(index).result()
        self._rows.pop(index, None)
        return views
