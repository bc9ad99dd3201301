"""Forward passes over every shard that is not in the store yet, here or by an engine's workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch

from layerscope.capture import Site, check_residual, expand_sites
from layerscope.data.items import Items
from layerscope.engines import Engine, LocalEngine, ModelRecipe
from layerscope.forward import EarlyPlanner, Plan, Prefetcher, items_per_batch
from layerscope.metrics.samples import FOLDS
from layerscope.metrics.tokens.measures import entropy_kernel
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.encoder import (
    PendingShard,
    QueuedShard,
    ShardEncoder,
    ShardWork,
    make_reducer,
)
from layerscope.progress import Progress
from layerscope.spectra import faster
from layerscope.store import Shard, ShardStore

MOST_PENDING = 8  # shards whose items are run before their views, while those are being made


class MemoryStore:
    """Like `ShardStore`, in memory: nothing of it outlives the run."""

    def __init__(self) -> None:
        self._shards: dict[int, Shard] = {}
        self._later: dict[int, Callable[[], Shard]] = {}

    def has(self, index: int) -> bool:
        """Whether a shard is finished."""
        return index in self._shards and index not in self._later

    def write(self, index: int, shard: Shard) -> None:
        """Keep a finished shard."""
        self._shards[index] = shard

    def promise(self, index: int, shard: Shard, finish: Callable[[], Shard]) -> None:
        """Keep a shard that a GPU may still be working on. `finish` waits, checks it, and gives it
        with its values."""
        self._shards[index], self._later[index] = shard, finish

    def vectors(self, index: int) -> Any:
        """The pooled vectors of a shard: on a GPU they are there before anything that is done with
        them."""
        return self._shards[index].pooled

    def read(self, index: int) -> Shard:
        """A finished shard."""
        if index in self._later:
            self._shards[index] = self._later[index]()
            del self._later[index]  # not before: if memory runs out, it is asked again
        return self._shards[index]


@contextmanager
def write_behind(store: ShardStore | MemoryStore) -> Iterator[Callable[[int, Shard], None]]:
    """Writes shards to a store while the next is computed: a GPU does not wait for the disk.

    One shard at most is being written; an error in writing it is raised by the next call, or at the
    end.
    """
    last: Future[None] | None = None
    with ThreadPoolExecutor(1, thread_name_prefix="layerscope-writing") as thread:

        def write(index: int, shard: Shard) -> None:
            nonlocal last
            if last is not None:
                last.result()
            last = thread.submit(store.write, index, shard)

        yield write
        if last is not None:
            last.result()


@dataclass
class ProfileTask:
    """What one profile runs: a model, items, settings and where. With a `recipe`, the engine's
    workers run the model."""

    model: LoadedModel
    items: Items
    config: ProfileConfig
    batch_size: int | None = None
    engine: Engine = field(default_factory=LocalEngine)
    recipe: ModelRecipe | None = None

    def __post_init__(self) -> None:
        self.sites: list[Site] = expand_sites(self.config.sites, self.model.anatomy)
        self.reader: ItemReader = self.model.open_items(self.items, self.config.read_settings)

    @cached_property
    def device(self) -> torch.device:
        """Where the model is run."""
        return torch.device(self.engine.device_type or self.model.device)

    @property
    def metrics_device(self) -> torch.device:
        """Where the metrics are computed from finished shards: in this process."""
        if self.recipe is None:
            return self.model.device
        return torch.device(
            "cuda" if self.device.type == "cuda" and torch.cuda.is_available() else "cpu"
        )

    @cached_property
    def items_per_batch(self) -> int:
        """Of how many items the views fill a batch; 0 without views, or where others run the
        model."""
        if self.recipe is not None:
            return 0
        return items_per_batch(
            self.model, self.reader.max_length, self.config.n_views, self.batch_size
        )


def compile_kernels(task: ProfileTask) -> None:
    """Start compiling the kernels that a profile needs on this GPU, where a machine has none of
    them yet."""
    device, width = task.model.device, task.model.width
    gpu = faster.on(device)
    if gpu is None:
        return
    tokens, prompts = task.config.max_length or task.model.max_length or 512, len(task.items)
    sizes = {min(n, width) for n in ((prompts, prompts - prompts // FOLDS) if prompts > 1 else ())}
    with suppress(OSError, RuntimeError):  # then the kernels are not used at all
        solvers = [entropy_kernel(min(tokens, width), task.config.options, device)]
        solvers += [gpu.kernel_source(n, device.index or 0) for n in sizes]
        gpu.ahead.compile_kernels(
            [*gpu.ahead.reading_kernels(width, task.model.dtype), gpu.factors.SOURCE, *solvers],
            device,
        )


def encode(
    task: ProfileTask, plan: Plan, store: ShardStore | MemoryStore, bar: Progress
) -> dict[str, Any]:
    """Encode what is missing; a shard is done when it is in the store. Returns facts for the
    manifest."""
    missing = [i for i in range(len(plan.shards)) if not store.has(i)]
    done = plan.n_prompts - sum(len(plan.shards[i]) for i in missing)
    _start_bar(task, plan, bar, done * (1 + task.config.n_views))
    facts = _facts(done)
    if not missing:
        return facts
    if any(site.part for site in task.sites):
        facts["residual_error"] = _residual_error(task, plan)
    if task.recipe is None:
        facts["empty_views"] = _encode_here(task, plan, store, missing, bar)
    else:
        facts["empty_views"] = _encode_by_workers(task, task.recipe, plan, store, missing, bar)
        facts["engine"] = task.engine.facts()
    return facts


def encode_in_memory(
    task: ProfileTask, store: MemoryStore, bar: Progress, shard_size: int
) -> tuple[Plan, dict[str, Any]]:
    """Plan and encode items whose shards stay in memory. The first are run while the others are
    still looked at."""
    model, config, reader, facts = task.model, task.config, task.reader, _facts(0)
    with ExitStack() as stack:
        stack.callback(reader.stop_views)
        inside = any(site.part for site in task.sites)
        planner = stack.enter_context(
            EarlyPlanner(reader, shard_size, early=not inside, per_batch=task.items_per_batch)
        )
        # after the first items have been tokenized, which a dozen processes that start up would
        # hold up
        reader.start_views(config.view_settings, len(task.items))
        if inside:  # before there are other hooks
            facts["residual_error"] = _residual_error(task, planner.plan())
        reducer = stack.enter_context(make_reducer(model, task.sites, config))
        encoder = ShardEncoder(reader, model, reducer, config, task.batch_size, on_device=True)
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
        _start_bar(task, plan, bar, sum(len(shard.shard) for shard in pending))
        _run_in_memory(encoder, prefetcher, plan, pending, store, bar)
        facts["empty_views"] = encoder.empty_views
    return plan, facts


def _run_in_memory(
    encoder: ShardEncoder,
    prefetcher: Prefetcher,
    plan: Plan,
    pending: deque[PendingShard],
    store: MemoryStore,
    bar: Progress,
) -> None:
    """Run every shard of a plan, some of which are pending. A GPU that would wait for views gets
    the next items instead.

    Which items share a batch does not depend on how long views take.
    """
    views, queued, written = encoder.config.n_views, deque[QueuedShard](), 0
    left, at_once = plan.shards[len(pending) :], MOST_PENDING if views else 1
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
                encoder.run_views(plan, shard, bar.advance)
            queued.append(encoder.queue(shard))
            if not waiting and not pending:
                prefetcher.reader.stop_views()  # all have been read: while a GPU still works, this costs no time
        elif waiting:
            pending.extend(encoder.run_items_of(plan, waiting.popleft(), bar.advance))
        # the host waits for a shard while another one's passes are queued; for the last one when it
        # has queued the metrics
        while len(queued) > 1:
            store.write(written, encoder.finish(queued.popleft()))
            written += 1
        if queued and not waiting and not pending:
            last = queued.popleft()
            store.promise(
                written,
                Shard(last.pending.shard, last.pending.pooled, {}),  # type: ignore[arg-type]
                partial(encoder.finish, last),
            )


def _start_bar(task: ProfileTask, plan: Plan, bar: Progress, done: int) -> None:
    bar.begin(
        f"{task.model.name}|{task.items.kind}", plan.n_prompts * (1 + task.config.n_views), done
    )


def _facts(resumed: int) -> dict[str, Any]:
    return {"resumed_prompts": resumed, "residual_error": None, "empty_views": 0}


def _encode_here(
    task: ProfileTask,
    plan: Plan,
    store: ShardStore | MemoryStore,
    missing: list[int],
    bar: Progress,
) -> int:
    with ExitStack() as stack:
        reducer = stack.enter_context(make_reducer(task.model, task.sites, task.config))
        prefetcher = None
        if task.model.device.type == "cuda":  # a GPU would have to wait for texts and disks
            shards = [plan.shards[i] for i in missing]
            prefetcher = stack.enter_context(
                Prefetcher(task.reader, plan, shards, task.config.view_settings)
            )
        encoder = ShardEncoder(
            task.reader, task.model, reducer, task.config, task.batch_size, prefetcher=prefetcher
        )
        write = stack.enter_context(write_behind(store)) if prefetcher is not None else store.write
        for index in missing:
            write(index, encoder.run(plan, plan.shards[index], bar.advance))
        return encoder.empty_views


def _encode_by_workers(
    task: ProfileTask,
    recipe: ModelRecipe,
    plan: Plan,
    store: ShardStore | MemoryStore,
    missing: list[int],
    bar: Progress,
) -> int:
    """Workers encode, this process writes: what is in the store is there whatever happens to
    them."""
    work = ShardWork(recipe, task.items, task.sites, task.config, plan, task.batch_size)
    empty = 0
    for i, (shard, more) in task.engine.run(work, missing, bar.advance):
        store.write(missing[i], shard)
        empty += more
    return empty


def _residual_error(task: ProfileTask, plan: Plan) -> float | None:
    batch = task.reader.sample(int(plan.shards[-1][-1]))
    return check_residual(task.model.anatomy, lambda: task.model.run(batch))
