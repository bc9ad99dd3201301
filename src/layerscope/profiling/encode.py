"""The forward passes of a profile: items and their views become vectors and numbers in a vector
space, here, on a GPU or by an engine's workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from layerscope import accelerator
from layerscope.capture import Batch, Reducer, Site, check_residual, expand_sites, token_budget
from layerscope.data.items import Items
from layerscope.engines import Advance, Engine, LocalEngine, ModelRecipe, Work
from layerscope.errors import DataError
from layerscope.forward import BatchRunner
from layerscope.metrics import get_metric
from layerscope.metrics.registry import is_plugin, register
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Part, Row
from layerscope.profiling.config import ProfileConfig
from layerscope.progress import Progress
from layerscope.spectra import to_device
from layerscope.vectors import Shard, VectorSpace

__all__ = [
    "EncodedItems",
    "EncodedShard",
    "Numbers",
    "Plan",
    "ProfileTask",
    "ShardEncoder",
    "encode",
    "index_on",
    "join_plan",
    "make_plan",
    "make_reducer",
    "read_rows",
    "residual_error",
    "rows_by_number",
    "shards_by_length",
    "start_bar",
]

_POOLED = "pooled"
_NUMBERS = "numbers"
_SHARD_BYTES = 96 * 2**20
_SHARD_BYTES_ON_GPU = 256 * 2**20
_USUAL_LENGTH = 128  # tokens, where there is no limit

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


def items_per_batch(
    model: LoadedModel, max_length: int | None, views: int, most: int | None = None
) -> int:
    """Return the number of items whose views fill a batch if all are as long as they may be.

    It is at least 1, and 0 without views. A batch has `most` texts.
    """
    if not views:
        return 0
    texts = token_budget(model.device, model.width) // (max_length or _USUAL_LENGTH)
    return max(1, min(texts, most or texts) // views)


def choose_shard_size(
    device_type: str, sites: int, views: int, width: int, item_bytes: int = 0, per_batch: int = 0
) -> int:
    """Return the items of a shard: a minute or so of work on a CPU, full batches on a GPU, and a
    bounded amount of memory.

    `item_bytes` is the size of one item's input, where that is more than a few token ids. The views
    of `per_batch` items fill a batch on a GPU: a shard has a multiple of them, as its last batch
    would be a part of one.
    """
    is_gpu = device_type == "cuda"
    most = 32 if device_type == "cpu" else 512
    room = _SHARD_BYTES_ON_GPU if is_gpu else _SHARD_BYTES
    item_size = (1 + views) * max(item_bytes, sites * width * 4)
    size = max(4, min(most, room // item_size))
    return size - size % per_batch if is_gpu and 0 < per_batch <= size else size


# The plan


@dataclass(frozen=True)
class Plan:
    """Items by number: their keys (from their content), token counts, which were cut, and the
    shards they form.

    `rows` is what the model is run on, for every item, where that takes little memory.
    """

    keys: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    no_tokens: int
    max_length: int
    shards: list[np.ndarray]
    rows: Mapping[int, Row] | None = None

    @property
    def n_prompts(self) -> int:
        """Return the number of items that are read."""
        return sum(len(shard) for shard in self.shards)


def make_plan(reader: ItemReader, shard_size: int) -> Plan:
    """Count the tokens of all items and cut them, longest first, into shards."""
    survey = reader.survey(np.arange(len(reader.items)))
    keys = reader.items.keys
    return join_plan(reader, [survey], shards_by_length(survey, keys, shard_size), keys)


def shards_by_length(survey: Part, keys: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut items into shards, longest first: memory that does not suffice is found out at once. Ties
    by key, so that order never matters."""
    has_tokens = survey.lengths > 0
    numbers = survey.numbers[has_tokens]
    order = numbers[np.lexsort((keys[numbers], -survey.lengths[has_tokens]))]
    return [order[start : start + size] for start in range(0, len(order), size)]


def join_plan(
    reader: ItemReader, surveys: Sequence[Part], shards: list[np.ndarray], keys: np.ndarray
) -> Plan:
    """Return the plan of all items, which were surveyed in parts."""
    count = len(reader.items)
    lengths = np.zeros(count, dtype=np.int64)
    truncated = np.zeros(count, dtype=bool)
    for survey in surveys:
        lengths[survey.numbers] = survey.lengths
        truncated[survey.numbers] = survey.truncated
    usable = int((lengths > 0).sum())
    if not usable:
        raise DataError(
            f"the tokenizer of {reader.model.name} finds no token in any of the {count} "
            f"{reader.items.kind}."
        )
    fits = sum(survey.size for survey in surveys) <= reader.most_kept
    has_rows = fits and all(survey.rows is not None for survey in surveys)
    limit = int(lengths.max()) if reader.max_length is None else reader.max_length
    rows = rows_by_number(surveys) if has_rows else None
    return Plan(keys, lengths, truncated, count - usable, limit, shards, rows)


def rows_by_number(surveys: Sequence[Part]) -> dict[int, Row]:
    """Return the rows that surveys hold, by number of item."""
    return {
        int(number): row
        for survey in surveys
        for number, row in zip(survey.numbers, survey.rows or (), strict=True)
    }


def read_rows(reader: ItemReader, plan: Plan, shard: np.ndarray) -> Sequence[Row]:
    """Return the rows of a shard's items."""
    if plan.rows is None:
        return reader.read(shard)
    return [plan.rows[i] for i in shard]


# Encoding


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
    residual_error: float | None = None


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
        vectors = {_POOLED: pooled.reshape(*pooled.shape[:2], -1)}
        if shard.numbers:
            vectors[_NUMBERS] = np.stack(list(shard.numbers.values()), axis=-1)
        space.add(Shard([keys[i] for i in shard.prompts], site_names, vectors))

    error = None
    if shards and any(site.part for site in task.sites):
        error = residual_error(task, plan)
    gpu = accelerator.on(task.model.device)
    if shards and gpu is not None and task.recipe is None:
        gpu.encode_shards(task, plan, shards, store, bar)
    elif shards:
        engine = LocalEngine() if task.recipe is None else task.engine
        for _, encoded in engine.run(ShardWork(task, plan), shards, bar.advance):
            store(encoded)

    prompts = np.concatenate(plan.shards)
    prompt_keys = [keys[i] for i in prompts]

    def read_vectors(site: int) -> np.ndarray:
        rows = space.read(prompt_keys, _POOLED, site_names[site])
        return rows.reshape(len(rows), -1, task.model.width)

    def read_numbers() -> Numbers:
        if _NUMBERS not in readings:
            return {}
        fields = make_reducer(task.model, task.sites, task.config).fields
        values = np.stack([space.read(prompt_keys, _NUMBERS, name) for name in site_names])
        return {name: values[:, :, i] for i, name in enumerate(fields)}

    return EncodedItems(plan, prompts, read_vectors, read_numbers, resumed, error)


def start_bar(task: ProfileTask, plan: Plan, bar: Progress, done: int) -> None:
    """Show a bar for all items and their views, some of which are done."""
    total = plan.n_prompts * (1 + task.config.n_views)
    bar.begin(f"{task.model.name}|{task.items.kind}", total, done)


def residual_error(task: ProfileTask, plan: Plan) -> float | None:
    """Check the identity of the residual stream on the last item; return its largest error."""
    batch = task.reader.sample(int(plan.shards[-1][-1]))
    return check_residual(task.model.anatomy, lambda: task.model.run(batch))


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

    def run_views(
        self, views: Sequence[Row], pooled: Tensor, advance: Callable[[int], None]
    ) -> None:
        """Run the views of a shard, item by item."""
        count = self.config.n_views
        # One row per view, so that a batch is put into its place by a single index.
        rows_of_views = pooled[:, :, 1:]

        def keep_views(numbers: list[int], batch: Batch) -> None:
            reduced = self.reducer.reduce(batch, self.model.run, False)
            places = index_on(numbers, pooled.device)
            rows_of_views[:, places // count, places % count] = reduced.pooled.to(pooled.device)
            advance(len(numbers))

        self.runner.run(views, keep_views)

    def named(self, values: Tensor) -> dict[str, np.ndarray]:
        """Return token measures (fields, sites, items) by field."""
        return dict(zip(self.reducer.fields, values.numpy(), strict=True))


def index_on(numbers: list[int], device: torch.device) -> Tensor:
    """Return numbers as an index on a device."""
    return to_device(torch.tensor(numbers), device)


class ShardWork(Work[np.ndarray, EncodedShard]):
    """Encodes items by their numbers: here, with the model and the plan of a task, or by workers
    that open the task's recipe."""

    def __init__(self, task: ProfileTask, plan: Plan) -> None:
        self.recipe = task.recipe
        self.here = None if task.recipe is not None else (task.model, task.reader, plan)
        self.items = task.items
        self.sites = task.sites
        self.config = task.config
        self.batch_size = task.batch_size
        self.memory = 0 if task.recipe is None else task.recipe.memory
        # Workers may not have the package of a metric.
        metrics = map(get_metric, task.config.metrics)
        self.plugins = [metric for metric in metrics if is_plugin(metric)]

    def open(self) -> None:
        """Open the model and the items."""
        self._stack = ExitStack()
        self._plan: Plan | None = None
        if self.here is not None:
            model, reader, self._plan = self.here
        else:
            assert self.recipe is not None
            for metric in self.plugins:
                register(metric)
            model = self.recipe.open()
            model.find_shortcuts()
            reader = model.open_items(self.items, self.config.read_settings)
            self._stack.enter_context(reader)
        self.device = model.device.type
        reducer = self._stack.enter_context(make_reducer(model, self.sites, self.config))
        self._encoder = ShardEncoder(reader, model, reducer, self.config, self.batch_size)
        if self.device == "cuda":  # it would wait for one core of Python
            reader.start_views(self.config.view_settings, len(self.items))

    def run(self, item: np.ndarray, advance: Advance) -> EncodedShard:
        """Return the shard, encoded."""
        reader = self._encoder.reader
        rows = reader.read(item) if self._plan is None else read_rows(reader, self._plan, item)
        return self._encoder.run(item, rows, advance)

    def close(self) -> None:
        """Remove the hooks."""
        self._stack.close()

    def name(self, item: np.ndarray) -> str:
        """Return the number of items and the first of them."""
        return f"a part of {len(item)} {self.items.kind} (the first: number {item[0]})"
