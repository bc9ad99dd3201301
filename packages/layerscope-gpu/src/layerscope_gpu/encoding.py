"""Run the forward passes of a profile on a GPU while the next items and views are read, so that the
GPU does not wait for them."""

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
from layerscope.models import ItemReader, Part, Row, ViewSettings
from layerscope.profiling.encode import (
    EncodedItems,
    EncodedShard,
    Numbers,
    Plan,
    ProfileTask,
    ShardEncoder,
    index_on,
    join_plan,
    make_reducer,
    read_rows,
    residual_error,
    rows_by_number,
    shards_by_length,
    start_bar,
)
from layerscope.progress import Progress
from layerscope_gpu import factors
from layerscope_gpu.cuda import architecture_of, compile_ahead
from layerscope_gpu.eigenvalues import kernel_source
from layerscope_gpu.passes import activations, norms, rotary
from layerscope_gpu.token_measures import entropy_kernel
from layerscope_gpu.tokens import gram
from layerscope_gpu.tokens.normed import KERNELS, source_for
from layerscope_gpu.transfers import Sent

MOST_PENDING = 8  # shards whose items are run before their views have been made


def compile_for_profile(task: ProfileTask) -> None:
    """Start compiling the kernels that a profile needs on this GPU and that are not cached.

    Compiling them one after the other takes seconds. Kernels that cannot be compiled are not used.
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
    if dtype.itemsize != 2:  # other kernels support only half precision
        return [gram.SOURCE]
    of_passes = [activations.SOURCE, rotary.source(dtype), norms.source(width, dtype)]
    return [*of_passes, *(source_for(name, width, dtype) for name in KERNELS), gram.SOURCE]


def encode_shards(
    task: ProfileTask,
    plan: Plan,
    shards: list[np.ndarray],
    store: Callable[[EncodedShard], None],
    bar: Progress,
) -> None:
    """Encode shards, storing each while the next is computed."""
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


def encode_in_memory(task: ProfileTask, bar: Progress) -> EncodedItems:
    """Plan and encode items whose shards stay in memory; the first items are run while the others
    are tokenized."""
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
        # after the first items have been tokenized, since a dozen starting processes delay that
        reader.start_views(config.view_settings, len(task.items))
        if inside:  # before other hooks are added
            error = residual_error(task, planner.plan())
        reducer = stack.enter_context(make_reducer(model, task.sites, config))
        encoder = DeviceEncoder(reader, model, reducer, config, task.batch_size, on_device=True)
        pending = deque[PendingShard]()
        plan = planner.first() or planner.plan()
        early = len(plan.shards) if planner.early else 0
        pending.extend(
            encoder.run_items_of(plan, plan.shards[:early], lambda n: None, planner.start)
        )
        # after the GPU's first work is queued, since a thread that reads views delays that
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
        # the host waits here for the GPU's last passes
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
        residual_error=error,
    )


def _run_in_memory(
    encoder: DeviceEncoder,
    prefetcher: Prefetcher,
    plan: Plan,
    pending: deque[PendingShard],
    bar: Progress,
) -> tuple[list[EncodedShard], Callable[[], EncodedShard]]:
    """Run every shard of a plan, of which some are pending; return the shards and a function that
    finishes the last.

    While views are not ready, the GPU runs the next items instead. It may still work on the last
    shard; the function waits for that shard, checks it and returns it with its numbers. Which items
    share a batch does not depend on the time that views take.
    """
    views = encoder.config.n_views
    queued = deque[QueuedShard]()
    encoded: list[EncodedShard] = []
    remaining = plan.shards[len(pending) :]
    at_once = MOST_PENDING if views else 1
    waiting = deque(remaining[i : i + at_once] for i in range(0, len(remaining), at_once))
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
                # all views have been read; this costs no time while the GPU still works
                prefetcher.reader.stop_views()
        elif waiting:
            pending.extend(encoder.run_items_of(plan, waiting.popleft(), bar.advance))
        # The host waits for a shard while the next one's passes are queued. It waits for the last
        # shard after it has queued the metrics.
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
    """Yield a function that stores a shard in the background, so that the GPU does not wait for the
    disk.

    At most one shard is written at a time. The next call, or the end of the context, raises an
    error in writing it.
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
    """A shard whose items' passes are queued; the host has not yet waited for them."""

    shard: np.ndarray
    rows: Sequence[Row]
    pooled: Tensor
    values: Tensor | None


@dataclass
class QueuedShard:
    """A shard whose passes are all queued, with the tensors that the host will read."""

    pending: PendingShard
    finite: Sent
    values: Sent | None
    pooled: Sent | None


class DeviceEncoder(ShardEncoder):
    """Runs shards while others are read, in the steps `run_items_of`, `run_views_of`, `queue` and
    `finish`.

    The host waits for a shard while the passes of the next are queued. With `on_device` the vectors
    stay on the device.
    """

    def __init__(
        self, *arguments: Any, on_device: bool = False, prefetcher: Prefetcher | None = None
    ) -> None:
        super().__init__(*arguments)
        self.on_device = on_device
        self.prefetcher = prefetcher

    def run_ahead(
        self, plan: Plan, shard: np.ndarray, advance: Callable[[int], None]
    ) -> QueuedShard:
        """Queue the passes of one shard's items and views."""
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
        """Run the items of several shards in common batches, since a GPU takes less time for a
        small batch than the host; call `on_batch()` before each."""
        pending = [
            PendingShard(shard, self._rows(plan, shard), *self.make_room(len(shard)))
            for shard in shards
        ]
        with_tokens = self.config.needs("tokens")
        # the shard of each item, and its place there
        places = [(target, i) for target in pending for i in range(len(target.rows))]

        def keep_items(numbers: list[int], batch: Batch) -> None:
            on_batch()
            reduced = self.reducer.reduce(batch, self.model.run, with_tokens)
            for target in pending:
                in_batch = [
                    (k, places[number][1])
                    for k, number in enumerate(numbers)
                    if places[number][0] is target
                ]
                if not in_batch:
                    continue
                device = target.pooled.device
                rows = index_on([i for _, i in in_batch], device)
                columns: Tensor | slice = slice(None)
                if len(in_batch) < len(numbers):
                    columns = index_on([k for k, _ in in_batch], device)
                target.pooled[:, rows, 0] = reduced.pooled.to(device)[:, columns]
                if target.values is not None and reduced.tokens is not None:
                    target.values[:, :, rows] = reduced.tokens.to(device)[:, :, columns]
            advance(len(numbers))

        self.runner.run([row for target in pending for row in target.rows], keep_items)
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
        """Queue the check of a shard's results and their copy to the host, without waiting."""
        finite = torch.isfinite(pending.pooled).all()
        values = None if pending.values is None else Sent(pending.values)
        pooled = None if self.on_device else Sent(pending.pooled)
        return QueuedShard(pending, Sent(finite), values, pooled)

    def finish(self, queued: QueuedShard) -> EncodedShard:
        """Wait for a shard, check it and return it."""
        pooled = queued.pending.pooled
        if not bool(queued.finite.get()):
            self.reducer.check(pooled)  # raises and names the site
        numbers = {} if queued.values is None else self.named(queued.values.get())
        rows = pooled if queued.pooled is None else queued.pooled.get().numpy()
        return EncodedShard(queued.pending.shard, rows, numbers)


# Size of the first shard, which is run while the other items are tokenized. It keeps the GPU busy
# while the host queues more work. With views it is twice as large, since the host also starts the
# processes that make them.
_FIRST_TOKENS = 33792
_FIRST_ITEMS = (16, 264)  # at least, at most
_FIRST_SHARE = 8  # at least an eighth of the items: tokenizing takes longer the more there are
# Batches of views in the first shards. The GPU runs the views of one shard while those of the next
# are made, which takes nearly as long.
_FIRST_VIEWS = (1, 2, 2, 3, 4)
_MOST_IN_FIRST = 40  # items of the first: the GPU is idle until their views are made


def _first_shards(survey: Part, per_batch: int, shard_size: int) -> list[np.ndarray]:
    """Return the shards that are run first: one, or several smaller ones if there are views.

    `per_batch` is the number of items whose views fill a batch, 0 without views.
    """
    numbers = survey.numbers[survey.lengths > 0]
    shards = []
    for size in (batches * min(per_batch, _MOST_IN_FIRST) for batches in _FIRST_VIEWS if per_batch):
        if len(numbers) > size < shard_size:
            shards.append(numbers[:size])
            numbers = numbers[size:]
    return [*shards, *(numbers[i : i + shard_size] for i in range(0, len(numbers), shard_size))]


def _largest(reader: ItemReader, count: int) -> np.ndarray | None:
    """Return the longest texts, in the order of their lengths and then of their characters; None
    for other items."""
    texts = getattr(reader, "texts", None)
    if texts is None:
        return None
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    threshold = np.partition(sizes, -count)[-count]
    candidates = np.flatnonzero(sizes >= threshold).tolist()
    return np.array(sorted(candidates, key=lambda i: (-len(texts[i]), texts[i]))[:count])


class EarlyPlanner:
    """Makes a plan while its first shard is run, so that the GPU need not wait until all items are
    tokenized. Use it as a context.

    It serves runs whose shards stay in memory. Run folders identify shards by number, so their plan
    must be complete first. The first shard holds the largest items. It shows at once if memory is
    short, and its items do not depend on their order. `per_batch` is the number of items whose
    views fill a batch, 0 without views.
    """

    def __init__(
        self, reader: ItemReader, shard_size: int, early: bool = True, per_batch: int = 0
    ) -> None:
        self.reader = reader
        self.shard_size = shard_size
        self.per_batch = per_batch
        self._first = self._survey_largest() if early else None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layerscope-planning")
        self._others: Future[Part] | None = None

    def _survey_largest(self) -> Part | None:
        limit = self.reader.max_length or _FIRST_TOKENS
        enough = int(np.clip(_FIRST_TOKENS // limit, *_FIRST_ITEMS))
        items = len(self.reader.items)
        if self.per_batch:
            count = 2 * enough
        else:
            count = min(self.shard_size, max(enough, items // _FIRST_SHARE))
        largest = _largest(self.reader, count) if items > count + min(enough, count) else None
        survey = None if largest is None else self.reader.survey(largest)
        if survey is None or survey.rows is None or not survey.lengths.any():
            return None
        return survey

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    @property
    def early(self) -> bool:
        """Return True if there is a first shard before the whole plan."""
        return self._first is not None

    def first(self) -> Plan | None:
        """Return the plan of the first shard alone; None where all items must be tokenized
        first."""
        survey = self._first
        if survey is None:
            return None
        nothing = np.empty(0)
        limit = self.reader.max_length or int(survey.lengths.max())
        shards = _first_shards(survey, self.per_batch, self.shard_size)
        return Plan(nothing, nothing, nothing, 0, limit, shards, rows_by_number([survey]))

    def start(self) -> None:
        """Start tokenizing the other items in the background.

        Call this once the GPU has a batch, since tokenizing uses every core.
        """
        if self._others is None:
            surveyed = np.arange(0) if self._first is None else self._first.numbers
            unread = np.setdiff1d(np.arange(len(self.reader.items)), surveyed, assume_unique=True)
            self._others = self._thread.submit(self.reader.survey, unread)

    def plan(self) -> Plan:
        """Return the complete plan, which begins with the shards of `first`."""
        self.start()
        assert self._others is not None
        keys = self.reader.items.keys  # computed while other threads tokenize
        surveys = [self._others.result()]
        shards = shards_by_length(surveys[0], keys, self.shard_size)
        if self._first is not None:
            surveys.insert(0, self._first)
            shards = [*_first_shards(self._first, self.per_batch, self.shard_size), *shards]
        return join_plan(self.reader, surveys, shards, keys)


_AHEAD = 2  # shards


class Prefetcher:
    """Reads shards in threads, a few ahead of the requested one. Use it as a context.

    One thread reads items and another reads views, so that items can be run before their views
    exist. Shards may be added later.
    """

    def __init__(
        self, reader: ItemReader, plan: Plan, shards: Sequence[np.ndarray], views: ViewSettings
    ) -> None:
        self.reader = reader
        self.view_settings = views
        self._order: dict[int, int] = {}
        self._shards: list[np.ndarray] = []
        self._rows: dict[int, Future[Sequence[Row]]] = {}
        self._views: dict[int, Future[Sequence[Row]]] = {}
        self._views_requested = self._views_given = 0
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"layerscope-prefetch-{kind}")
            for kind in ("items", "views")
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
        """Add shards to read, of a plan that also holds the earlier ones."""
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
        pending = self._rows.get(index)
        if pending is not None:
            return pending.result()
        return read_rows(self.reader, self.plan, self._shards[index])

    def _request_views(self) -> None:
        if not self.view_settings.count:
            return
        end = min(self._views_given + 1 + _AHEAD, len(self._shards))
        for index in range(self._views_requested, end):
            self._request_rows(index)
            self._views[index] = self._threads[1].submit(self._read_views, index)
        self._views_requested = max(self._views_requested, end)

    def _read_views(self, index: int) -> Sequence[Row]:
        return self.reader.read_views(self._shards[index], self._rows_of(index), self.view_settings)

    def rows(self, shard: np.ndarray) -> Sequence[Row]:
        """Return the rows of a shard's items, and request those of the next shards."""
        index = self._order[int(shard[0])]
        for i in range(index, min(index + 1 + _AHEAD, len(self._shards))):
            self._request_rows(i)
        rows = self._rows_of(index)
        if not self.view_settings.count:
            self._rows.pop(index, None)
        return rows

    def has_views(self, shard: np.ndarray) -> bool:
        """Return True if a shard's views have been read."""
        pending = self._views.get(self._order[int(shard[0])])
        return pending is not None and pending.done()

    def views(self, shard: np.ndarray) -> Sequence[Row]:
        """Return the rows of a shard's views, once: the shard's data are then dropped."""
        index = self._order[int(shard[0])]
        self._views_given = max(self._views_given, index + 1)
        self._request_views()
        views = self._views.pop(index).result()
        self._rows.pop(index, None)
        return views
