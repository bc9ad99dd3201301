"""The forward passes of a profile on a GPU: items and views are read while others are run, so that
the GPU waits for neither."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Batch
from layerscope.metrics.vectors import FOLDS
from layerscope.models import ItemReader, Part, Row, ViewInputs, ViewSettings
from layerscope.profiling.encode import (
    EncodedItems,
    EncodedShard,
    Numbers,
    ProfileTask,
    ShardEncoder,
    index_on,
    make_reducer,
    residual_error,
    start_bar,
)
from layerscope.profiling.plan import Plan, join_plan, read_rows, rows_by_number, shards_by_length
from layerscope.progress import Progress
from layerscope_gpu import factors
from layerscope_gpu.cuda import architecture_of, compile_ahead
from layerscope_gpu.eigenvalues import kernel_source
from layerscope_gpu.passes import activations, norms, rotary
from layerscope_gpu.token_measures import entropy_kernel
from layerscope_gpu.tokens import gram
from layerscope_gpu.tokens.normed import KERNELS, source_for
from layerscope_gpu.transfers import Sent

MOST_PENDING = 8  # shards whose items are run before their views, while those are being made


def compile_for_profile(task: ProfileTask) -> None:
    """Start compiling the kernels that a profile needs on this GPU, where a machine has none of
    them yet.

    One after the other they would take seconds. Where they cannot be compiled, they are not used.
    """
    model = task.model
    options = task.config.options
    tokens = task.config.max_length or model.max_length or 512
    prompts = len(task.items)
    sources = [
        *reading_kernels(model.width, model.dtype),
        factors.SOURCE,
        entropy_kernel(min(tokens, model.width), options),
    ]
    if prompts > 1:
        rows = {min(n, model.width) for n in (prompts, prompts - prompts // FOLDS)}
        sources += [kernel_source(n) for n in rows]
    with suppress(OSError, RuntimeError):
        architecture = architecture_of(model.device.index or 0)
        compile_ahead([source for source in sources if source is not None], architecture)


def reading_kernels(width: int, dtype: torch.dtype) -> list[str]:
    """Return the sources of the kernels that run a model of this width and type and reduce its
    states."""
    if dtype.itemsize != 2:  # passes in single precision are left as they are
        return [gram.SOURCE]
    of_passes = [activations.SOURCE, rotary.source(dtype), norms.source(width, dtype)]
    return [*of_passes, *(source_for(name, width, dtype) for name in KERNELS), gram.SOURCE]


def encode_shards(
    task: ProfileTask,
    plan: Plan,
    shards: list[np.ndarray],
    store: Callable[[EncodedShard], None],
    bar: Progress,
) -> int:
    """Encode shards, each of which is stored while the next is computed; return how many views were
    empty."""
    compile_for_profile(task)
    with ExitStack() as stack:
        reducer = stack.enter_context(make_reducer(task.model, task.sites, task.config))
        prefetcher = stack.enter_context(
            Prefetcher(task.reader, plan, shards, task.config.view_settings)
        )
        encoder = DeviceEncoder(
            task.reader, task.model, reducer, task.config, task.batch_size, prefetcher=prefetcher
        )
        write = stack.enter_context(write_behind(store))
        queued = deque[QueuedShard]()
        for shard in shards:
            queued.append(encoder.run_ahead(plan, shard, bar.advance))
            if len(queued) > 1:  # the host waits for a shard while the next one's passes are queued
                write(encoder.finish(queued.popleft()))
        for last in queued:
            write(encoder.finish(last))
        return encoder.empty_views


def encode_in_memory(task: ProfileTask, bar: Progress) -> EncodedItems:
    """Plan and encode items whose shards stay in memory. The first are run while the others are
    still looked at."""
    model = task.model
    config = task.config
    reader = task.reader
    error = None
    compile_for_profile(task)
    with ExitStack() as stack:
        stack.callback(reader.stop_views)
        inside = any(site.part for site in task.sites)
        planner = stack.enter_context(
            EarlyPlanner(reader, task.shard_size, early=not inside, per_batch=task.items_per_batch)
        )
        # after the first items have been tokenized, which a dozen processes that start up would
        # hold up
        reader.start_views(config.view_settings, len(task.items))
        if inside:  # before there are other hooks
            error = residual_error(task, planner.plan())
        reducer = stack.enter_context(make_reducer(model, task.sites, config))
        encoder = DeviceEncoder(reader, model, reducer, config, task.batch_size, on_device=True)
        pending = deque[PendingShard]()
        plan = planner.first() or planner.plan()
        early = len(plan.shards) if planner.early else 0
        pending.extend(
            encoder.run_items_of(plan, plan.shards[:early], lambda n: None, planner.start)
        )
        # after the GPU has been given its first work: a thread that readies views would hold that
        # up
        prefetcher = encoder.prefetcher = stack.enter_context(
            Prefetcher(reader, plan, plan.shards, config.view_settings)
        )
        if planner.early:
            plan = planner.plan()
            prefetcher.add(plan, plan.shards[early:])
        start_bar(task, plan, bar, sum(len(shard.shard) for shard in pending))
        encoded, finish_last = _run_in_memory(encoder, prefetcher, plan, pending, bar)

    def read_vectors(site: int) -> Tensor:
        return torch.cat([shard.pooled[site] for shard in encoded])

    def read_numbers() -> Numbers:
        # The host waits for the GPU's last passes now.
        shards = [*encoded[:-1], finish_last()]
        return {
            field: np.concatenate([shard.numbers[field] for shard in shards], axis=1)
            for field in shards[-1].numbers
        }

    prompts = np.concatenate(plan.shards)
    return EncodedItems(
        plan,
        prompts,
        read_vectors,
        read_numbers,
        empty_views=encoder.empty_views,
        residual_error=error,
    )


def _run_in_memory(
    encoder: DeviceEncoder,
    prefetcher: Prefetcher,
    plan: Plan,
    pending: deque[PendingShard],
    bar: Progress,
) -> tuple[list[EncodedShard], Callable[[], EncodedShard]]:
    """Run every shard of a plan, some of which are pending. A GPU that would wait for views gets
    the next items instead.

    Return the shards. Of the last one the GPU is still at work; the function waits for it, checks
    it, and returns it with its numbers.

    Which items share a batch does not depend on how long views take.
    """
    views = encoder.config.n_views
    queued = deque[QueuedShard]()
    encoded: list[EncodedShard] = []
    left = plan.shards[len(pending) :]
    at_once = MOST_PENDING if views else 1
    waiting = deque(left[i : i + at_once] for i in range(0, len(left), at_once))
    while waiting or pending or queued:
        if pending and (
            not views
            or not waiting
            or len(pending) >= MOST_PENDING
            or prefetcher.has_views(pending[0].shard)
        ):
            shard = pending.popleft()
            if views:
                encoder.run_views_of(shard, bar.advance)
            queued.append(encoder.queue(shard))
            if not waiting and not pending:
                prefetcher.reader.stop_views()  # all have been read: while a GPU still works, this costs no time
        elif waiting:
            pending.extend(encoder.run_items_of(plan, waiting.popleft(), bar.advance))
        # the host waits for a shard while another one's passes are queued; for the last one when it
        # has queued the metrics
        while len(queued) > 1:
            encoded.append(encoder.finish(queued.popleft()))
        if queued and not waiting and not pending:
            break
    last = queued.popleft()
    encoded.append(EncodedShard(last.pending.shard, last.pending.pooled, {}))
    return encoded, partial(encoder.finish, last)


@contextmanager
def write_behind(
    store: Callable[[EncodedShard], None],
) -> Iterator[Callable[[EncodedShard], None]]:
    """Store shards while the next is computed: a GPU does not wait for the disk.

    One shard at most is being written; an error in writing it is raised by the next call, or at the
    end.
    """
    last: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="layerscope-writing") as thread:

        def write(shard: EncodedShard) -> None:
            nonlocal last
            if last is not None:
                last.result()
            last = thread.submit(store, shard)

        yield write
        if last is not None:
            last.result()


@dataclass
class PendingShard:
    """A shard whose items have been run: its passes are queued, and the host has not waited for
    them yet."""

    shard: np.ndarray
    rows: Sequence[Row]
    pooled: Tensor
    values: Tensor | None


@dataclass
class QueuedShard:
    """A shard whose passes are all queued, with what the host will read of it when they are
    done."""

    pending: PendingShard
    finite: Sent
    values: Sent | None
    pooled: Sent | None


class DeviceEncoder(ShardEncoder):
    """Runs shards while others are read: the host waits for one while the next one's passes are
    queued (`run_items_of`, `run_views_of`, `queue`, `finish`). With `on_device` the vectors stay on
    the device for good."""

    def __init__(
        self, *given: Any, on_device: bool = False, prefetcher: Prefetcher | None = None
    ) -> None:
        super().__init__(*given)
        self.on_device = on_device
        self.prefetcher = prefetcher

    def run_ahead(
        self, plan: Plan, shard: np.ndarray, advance: Callable[[int], None]
    ) -> QueuedShard:
        """Queue one shard's items and their views, which are read ahead."""
        pending = self.run_items_of(plan, [shard], advance)[0]
        if self.config.n_views:
            self.run_views_of(pending, advance)
        return self.queue(pending)

    def run_items_of(
        self,
        plan: Plan,
        shards: Sequence[np.ndarray],
        advance: Callable[[int], None],
        on_batch: Callable[[], None] = lambda: None,
    ) -> list[PendingShard]:
        """Run the items of several shards, in common batches: a GPU does a small one in less time
        than the host takes for it.

        `on_batch()` is called before a batch is run.
        """
        pending = [
            PendingShard(shard, self._rows(plan, shard), *self.make_room(len(shard)))
            for shard in shards
        ]
        wanted = self.config.needs("tokens")
        # by item: which shard it is in, and its place there
        places = [(one, i) for one in pending for i in range(len(one.rows))]

        def keep_items(numbers: list[int], batch: Batch) -> None:
            on_batch()
            reduced = self.reducer.reduce(batch, self.model.run, wanted)
            for one in pending:
                here = [
                    (k, places[number][1])
                    for k, number in enumerate(numbers)
                    if places[number][0] is one
                ]
                if not here:
                    continue
                device = one.pooled.device
                where = index_on([i for _, i in here], device)
                some = (
                    slice(None)
                    if len(here) == len(numbers)
                    else index_on([k for k, _ in here], device)
                )
                one.pooled[:, where, 0] = reduced.pooled.to(device)[:, some]
                if one.values is not None and reduced.tokens is not None:
                    one.values[:, :, where] = reduced.tokens.to(device)[:, :, some]
            advance(len(numbers))

        self.runner.run([row for one in pending for row in one.rows], keep_items)
        return pending

    def _rows(self, plan: Plan, shard: np.ndarray) -> Sequence[Row]:
        if self.prefetcher is None:
            return read_rows(self.reader, plan, shard)
        return self.prefetcher.rows(shard)

    def run_views_of(self, pending: PendingShard, advance: Callable[[int], None]) -> None:
        """Run the views of a shard whose items have been run."""
        assert self.prefetcher is not None
        self.run_views(self.prefetcher.views(pending.shard), pending.pooled, advance)

    def queue(self, pending: PendingShard) -> QueuedShard:
        """Have the device check its results and send the host what it needs of them; nothing
        waits."""
        finite = torch.isfinite(pending.pooled).all()
        values = None if pending.values is None else Sent(pending.values)
        pooled = None if self.on_device else Sent(pending.pooled)
        return QueuedShard(pending, Sent(finite), values, pooled)

    def finish(self, queued: QueuedShard) -> EncodedShard:
        """Wait for a shard and check it."""
        pooled = queued.pending.pooled
        if not bool(queued.finite.get()):
            self.reducer.check(pooled)  # which finds the site and raises
        numbers = {} if queued.values is None else self.named(queued.values.get())
        rows = pooled if queued.pooled is None else queued.pooled.get().numpy()
        return EncodedShard(queued.pending.shard, rows, numbers)


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
_MOST_IN_FIRST = 40  # items of the first: a GPU has nothing to do until their views are made


def _first_shards(first: Part, per_batch: int, shard_size: int) -> list[np.ndarray]:
    """The items that are run first: one shard, or with views (`per_batch` items a batch) small ones
    and the others."""
    some = first.numbers[first.lengths > 0]
    shards = []
    for size in (batches * min(per_batch, _MOST_IN_FIRST) for batches in _FIRST_VIEWS if per_batch):
        if len(some) > size < shard_size:
            shards.append(some[:size])
            some = some[size:]
    return [*shards, *(some[i : i + shard_size] for i in range(0, len(some), shard_size))]


def _largest(reader: ItemReader, count: int) -> np.ndarray | None:
    """The texts with the most characters; among equals, by what they say. None for other items."""
    texts = getattr(reader, "texts", None)
    if texts is None:
        return None
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    least = np.partition(sizes, -count)[-count]
    some = np.flatnonzero(sizes >= least).tolist()
    return np.array(sorted(some, key=lambda i: (-len(texts[i]), texts[i]))[:count])


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
        self.reader = reader
        self.shard_size = shard_size
        self.per_batch = per_batch
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
        largest = _largest(self.reader, count) if every > count + min(enough, count) else None
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
        """Return True if there is a first shard before the whole plan."""
        return self._first is not None

    def first(self) -> Plan | None:
        """The plan of the first shard alone; None where all items must be looked at first."""
        first = self._first
        if first is None:
            return None
        nothing = np.empty(0)
        limit = self.reader.max_length or int(first.lengths.max())
        shards = _first_shards(first, self.per_batch, self.shard_size)
        return Plan(nothing, nothing, nothing, 0, limit, shards, rows_by_number([first]))

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
        rest = self._rest.result()
        parts = [rest] if self._first is None else [self._first, rest]
        shards = [
            shard
            for part in parts[:-1]
            for shard in _first_shards(part, self.per_batch, self.shard_size)
        ]
        shards += shards_by_length(rest, keys, self.shard_size)
        return join_plan(self.reader, parts, shards, keys)


_AHEAD = 2  # shards


class Prefetcher:
    """Reads shards in threads, a few ahead of the one that is asked for. Use it as a context.

    Items and views are read by a thread each: items can be run before their views are there. Shards
    may be added to a plan that grows.
    """

    def __init__(
        self, reader: ItemReader, plan: Plan, shards: Sequence[np.ndarray], views: ViewSettings
    ) -> None:
        self.reader = reader
        self.view_settings = views
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
        """Return True if a shard's views are there already."""
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
