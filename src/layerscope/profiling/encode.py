"""The forward passes of a profile: items and their views become vectors and numbers in a vector
space, here or by an engine's workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope import accelerator
from layerscope.capture import Batch, Reducer, Site, check_residual, expand_sites
from layerscope.data.items import Items
from layerscope.engines import Advance, Engine, LocalEngine, ModelRecipe, Work
from layerscope.forward import BatchRunner
from layerscope.metrics import Metric, get_metric
from layerscope.metrics.registry import is_plugin, register
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Row, ViewInputs
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.plan import (
    Plan,
    choose_shard_size,
    items_per_batch,
    make_plan,
    read_rows,
)
from layerscope.progress import Progress
from layerscope.spectra import to_device
from layerscope.vectors import Shard, VectorSpace

__all__ = [
    "EncodedItems",
    "EncodedShard",
    "Numbers",
    "ProfileTask",
    "ShardEncoder",
    "encode",
    "index_on",
    "make_reducer",
    "residual_error",
    "start_bar",
]

_POOLED = "pooled"
_NUMBERS = "numbers"

Numbers = Mapping[str, np.ndarray]
"""What was measured on single prompts, by field (sites, prompts)."""


@dataclass
class ProfileTask:
    """A profile to make: a model, items, settings and where the model runs. With a `recipe`, the
    engine's workers run it."""

    model: LoadedModel
    items: Items
    config: ProfileConfig
    batch_size: int | None = None
    engine: Engine = field(default_factory=LocalEngine)
    recipe: ModelRecipe | None = None
    sites: list[Site] = field(init=False)
    reader: ItemReader = field(init=False)

    def __post_init__(self) -> None:
        self.sites = expand_sites(self.config.sites, self.model.anatomy)
        self.reader = self.model.open_items(self.items, self.config.read_settings)

    @property
    def device(self) -> torch.device:
        """Return the device that the model runs on."""
        return torch.device(self.engine.device_type or self.model.device)

    @property
    def metrics_device(self) -> torch.device:
        """Return the device of this process on which metrics are computed from vectors."""
        if self.recipe is None:
            return self.model.device
        on_gpu = self.device.type == "cuda" and torch.cuda.is_available()
        return torch.device("cuda" if on_gpu else "cpu")

    @property
    def items_per_batch(self) -> int:
        """Return the number of items whose views fill a batch; 0 without views, or where workers
        run the model."""
        if self.recipe is not None:
            return 0
        views = self.config.n_views
        return items_per_batch(self.model, self.reader.max_length, views, self.batch_size)

    @property
    def shard_size(self) -> int:
        """Return the number of items that are encoded and stored at a time."""
        return choose_shard_size(
            self.device.type,
            len(self.sites),
            self.config.n_views,
            self.model.width,
            self.model.item_bytes,
            self.items_per_batch,
        )


@dataclass(frozen=True)
class EncodedShard:
    """Items by number, their vectors (sites, items, 1 + views, D) and their numbers by field
    (sites, items)."""

    prompts: np.ndarray
    pooled: np.ndarray | Tensor
    numbers: Numbers


@dataclass(frozen=True)
class EncodedItems:
    """All items of a profile, encoded. `prompts` are their numbers, in the order of the plan.

    `read_vectors` returns the vectors (prompts, 1 + views, D) of one site, `read_numbers` what was
    measured on single prompts. An accelerator may still be at work until they are read.
    """

    plan: Plan
    prompts: np.ndarray
    read_vectors: Callable[[int], np.ndarray | Tensor]
    read_numbers: Callable[[], Numbers]
    resumed_prompts: int = 0
    empty_views: int = 0
    residual_error: float | None = None
    engine: Mapping[str, Any] | None = None


def encode(task: ProfileTask, space: VectorSpace, bar: Progress) -> EncodedItems:
    """Encode the items that a space lacks, and store each shard as soon as it is done."""
    plan = make_plan(task.reader, task.shard_size)
    keys = [int(key).to_bytes(32, "big") for key in plan.keys]
    site_names = [site.name for site in task.sites]
    readings = [_POOLED, _NUMBERS] if task.config.needs("tokens") else [_POOLED]
    lacking = space.missing(keys, readings, site_names)
    shards = [shard[lacking[shard]] for shard in plan.shards if lacking[shard].any()]
    resumed = plan.n_prompts - sum(len(shard) for shard in shards)
    start_bar(task, plan, bar, resumed * (1 + task.config.n_views))

    def store(shard: EncodedShard) -> None:
        pooled = np.asarray(shard.pooled)
        rows = pooled.reshape(*pooled.shape[:2], -1)
        vectors = {_POOLED: rows}
        if shard.numbers:
            vectors[_NUMBERS] = np.stack(list(shard.numbers.values()), axis=-1)
        space.add(Shard([keys[i] for i in shard.prompts], site_names, vectors))

    error = None
    empty = 0
    if shards:
        if any(site.part for site in task.sites):
            error = residual_error(task, plan)
        gpu = accelerator.on(task.model.device)
        if task.recipe is not None:
            empty = _encode_by_workers(task, task.recipe, shards, store, bar)
        elif gpu is not None:
            empty = gpu.encode_shards(task, plan, shards, store, bar)
        else:
            empty = _encode_here(task, plan, shards, store, bar)

    prompts = np.concatenate(plan.shards)
    prompt_keys = [keys[i] for i in prompts]
    width = task.model.width

    def read_vectors(site: int) -> np.ndarray:
        rows = space.read(prompt_keys, _POOLED, site_names[site])
        return rows.reshape(len(rows), -1, width)

    def read_numbers() -> Numbers:
        if _NUMBERS not in readings:
            return {}
        fields = make_reducer(task.model, task.sites, task.config).fields
        values = np.stack([space.read(prompt_keys, _NUMBERS, name) for name in site_names])
        return {name: values[:, :, i] for i, name in enumerate(fields)}

    engine = task.engine.facts() if task.recipe is not None and shards else None
    return EncodedItems(plan, prompts, read_vectors, read_numbers, resumed, empty, error, engine)


def start_bar(task: ProfileTask, plan: Plan, bar: Progress, done: int) -> None:
    """Show a bar for all items and their views, some of which are done."""
    total = plan.n_prompts * (1 + task.config.n_views)
    bar.begin(f"{task.model.name}|{task.items.kind}", total, done)


def residual_error(task: ProfileTask, plan: Plan) -> float | None:
    """Check the identity of the residual stream on the last item; return its largest error."""
    batch = task.reader.sample(int(plan.shards[-1][-1]))
    return check_residual(task.model.anatomy, lambda: task.model.run(batch))


def _encode_here(
    task: ProfileTask,
    plan: Plan,
    shards: list[np.ndarray],
    store: Callable[[EncodedShard], None],
    bar: Progress,
) -> int:
    """Encode shards in this process; return the number of empty views."""
    with make_reducer(task.model, task.sites, task.config) as reducer:
        encoder = ShardEncoder(task.reader, task.model, reducer, task.config, task.batch_size)
        if task.model.device.type == "cuda":  # it would wait for one core of Python
            task.reader.start_views(task.config.view_settings, len(task.items))
        for shard in shards:
            store(encoder.run(shard, read_rows(task.reader, plan, shard), bar.advance))
        return encoder.empty_views


def _encode_by_workers(
    task: ProfileTask,
    recipe: ModelRecipe,
    shards: list[np.ndarray],
    store: Callable[[EncodedShard], None],
    bar: Progress,
) -> int:
    """Encode shards by an engine's workers; return the number of empty views."""
    work = ShardWork(recipe, task.items, task.sites, task.config, task.batch_size)
    empty = 0
    for _, (shard, empty_in_shard) in task.engine.run(work, shards, bar.advance):
        store(shard)
        empty += empty_in_shard
    return empty


def make_reducer(model: LoadedModel, sites: list[Site], config: ProfileConfig) -> Reducer:
    """Return what reduces a model's states to what the chosen metrics need."""
    metrics = [get_metric(name) for name in config.metrics]
    return Reducer(model.anatomy, sites, config.final_norm, config.options, metrics, model.device)


class ShardEncoder:
    """Runs shards through a model. On a GPU a shard's results stay on the device until all its
    batches are queued: the host waits once per shard."""

    def __init__(
        self,
        reader: ItemReader,
        model: LoadedModel,
        reducer: Reducer,
        config: ProfileConfig,
        batch_size: int | None = None,
    ) -> None:
        self.reader = reader
        self.model = model
        self.reducer = reducer
        self.config = config
        self.runner = BatchRunner(model, batch_size)
        self.device = model.device if model.device.type == "cuda" else torch.device("cpu")
        self.empty_views = 0

    def run(
        self, prompts: np.ndarray, rows: Sequence[Row], advance: Callable[[int], None]
    ) -> EncodedShard:
        """Encode items, given by number and by their rows, and the views of them."""
        pooled, values = self.make_room(len(prompts))

        def keep_items(numbers: list[int], batch: Batch) -> None:
            reduced = self.reducer.reduce(batch, self.model.run, values is not None)
            places = index_on(numbers, pooled.device)
            pooled[:, places, 0] = reduced.pooled.to(pooled.device)
            if values is not None and reduced.tokens is not None:
                values[:, :, places] = reduced.tokens.to(pooled.device)
            advance(len(numbers))

        self.runner.run(rows, keep_items)
        views = self.config.view_settings
        if views.count:
            self.run_views(self.reader.read_views(prompts, rows, views), pooled, advance)
        self.reducer.check(pooled)
        numbers = {} if values is None else self.named(values.cpu())
        return EncodedShard(prompts, pooled.cpu().numpy(), numbers)

    def make_room(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return the memory for the vectors and the token measures (if any) of so many items."""
        sites = len(self.reducer.sites)
        shape = (sites, count, 1 + self.config.n_views, self.model.width)
        pooled = torch.empty(shape, dtype=torch.float32, device=self.device)
        if not self.config.needs("tokens"):
            return pooled, None
        shape_of_values = (len(self.reducer.fields), sites, count)
        values = torch.full(shape_of_values, torch.nan, dtype=torch.float64, device=self.device)
        return pooled, values

    def run_views(self, views: ViewInputs, pooled: Tensor, advance: Callable[[int], None]) -> None:
        """Run the views of a shard, item by item."""
        count = self.config.n_views
        self.empty_views += views.empty
        # One row per view, so that a batch is put into its place by a single index.
        rows_of_views = pooled[:, :, 1:]

        def keep_views(numbers: list[int], batch: Batch) -> None:
            reduced = self.reducer.reduce(batch, self.model.run, False)
            places = index_on(numbers, pooled.device)
            rows_of_views[:, places // count, places % count] = reduced.pooled.to(pooled.device)
            advance(len(numbers))

        self.runner.run(views.rows, keep_views)

    def named(self, values: Tensor) -> dict[str, np.ndarray]:
        """Return token measures (fields, sites, items) by field, checked."""
        numbers = dict(zip(self.reducer.fields, values.numpy(), strict=True))
        self.reducer.check_values(numbers)
        return numbers


def index_on(numbers: list[int], device: torch.device) -> Tensor:
    """Return numbers as an index on a device."""
    return to_device(torch.tensor(numbers), device)


class ShardWork(Work[np.ndarray, tuple[EncodedShard, int]]):
    """Encodes items by their numbers. A result is the shard and the number of its empty views."""

    def __init__(
        self,
        recipe: ModelRecipe,
        items: Items,
        sites: list[Site],
        config: ProfileConfig,
        batch_size: int | None,
    ) -> None:
        self.recipe = recipe
        self.items = items
        self.sites = sites
        self.config = config
        self.batch_size = batch_size
        self.memory = recipe.memory
        # Workers may not have the package of a metric.
        self.plugins: list[Metric] = [
            metric for metric in map(get_metric, config.metrics) if is_plugin(metric)
        ]

    def open(self) -> None:
        """Load the model."""
        self._stack = ExitStack()
        for metric in self.plugins:
            register(metric)
        model = self.recipe.open()
        self.device = model.device.type
        model.find_shortcuts()
        reader = self._stack.enter_context(model.open_items(self.items, self.config.read_settings))
        reducer = self._stack.enter_context(make_reducer(model, self.sites, self.config))
        self._encoder = ShardEncoder(reader, model, reducer, self.config, self.batch_size)
        if model.device.type == "cuda":  # it would wait for one core of Python
            reader.start_views(self.config.view_settings)

    def run(self, item: np.ndarray, advance: Advance) -> tuple[EncodedShard, int]:
        """Return the shard, encoded, and the number of its empty views."""
        encoder = self._encoder
        before = encoder.empty_views
        shard = encoder.run(item, encoder.reader.read(item), advance)
        return shard, encoder.empty_views - before

    def close(self) -> None:
        """Remove the hooks."""
        self._stack.close()

    def name(self, item: np.ndarray) -> str:
        """Return the number of items and the first of them."""
        return f"a part of {len(item)} {self.items.kind} (the first: number {item[0]})"
