"""Forward passes over every shard that is not in the store yet, here or by an engine's workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from layerscope import accelerator
from layerscope.capture import Site, check_residual, expand_sites
from layerscope.data.items import Items
from layerscope.engines import Engine, LocalEngine, ModelRecipe
from layerscope.forward import Plan, items_per_batch
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.encoder import (
    ShardEncoder,
    ShardWork,
    make_reducer,
)
from layerscope.progress import Progress
from layerscope.store import Shard, ShardStore

__all__ = ["MemoryStore", "ProfileTask", "residual_error", "start_bar"]


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


def encode(
    task: ProfileTask, plan: Plan, store: ShardStore | MemoryStore, bar: Progress
) -> dict[str, Any]:
    """Encode what is missing; a shard is done when it is in the store. Returns facts for the
    manifest."""
    missing = [i for i in range(len(plan.shards)) if not store.has(i)]
    done = plan.n_prompts - sum(len(plan.shards[i]) for i in missing)
    start_bar(task, plan, bar, done * (1 + task.config.n_views))
    facts: dict[str, Any] = {"resumed_prompts": done, "residual_error": None, "empty_views": 0}
    if not missing:
        return facts
    if any(site.part for site in task.sites):
        facts["residual_error"] = residual_error(task, plan)
    if task.recipe is None:
        gpu = accelerator.on(task.model.device)
        run = _encode_here if gpu is None else gpu.encode_shards
        facts["empty_views"] = run(task, plan, store, missing, bar)
    else:
        facts["empty_views"] = _encode_by_workers(task, task.recipe, plan, store, missing, bar)
        facts["engine"] = task.engine.facts()
    return facts


def start_bar(task: ProfileTask, plan: Plan, bar: Progress, done: int) -> None:
    """Show a bar for all items and their views, some of which are done."""
    bar.begin(
        f"{task.model.name}|{task.items.kind}", plan.n_prompts * (1 + task.config.n_views), done
    )


def _encode_here(
    task: ProfileTask,
    plan: Plan,
    store: ShardStore | MemoryStore,
    missing: list[int],
    bar: Progress,
) -> int:
    with make_reducer(task.model, task.sites, task.config) as reducer:
        encoder = ShardEncoder(task.reader, task.model, reducer, task.config, task.batch_size)
        if task.model.device.type == "cuda":  # it would wait for one core of Python
            task.reader.start_views(task.config.view_settings, len(task.items))
        for index in missing:
            shard = plan.shards[index]
            store.write(index, encoder.run(shard, encoder.prepare(plan, shard), bar.advance))
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


def residual_error(task: ProfileTask, plan: Plan) -> float | None:
    """Check the identity of the residual stream on the last item; return its largest error."""
    batch = task.reader.sample(int(plan.shards[-1][-1]))
    return check_residual(task.model.anatomy, lambda: task.model.run(batch))
