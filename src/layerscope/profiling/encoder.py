"""The forward passes of one shard: items and their views through the model, reduced to a `Shard`;
here or in a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Batch, Reducer, Site
from layerscope.capture.reduce import reducer_on
from layerscope.data.items import Items
from layerscope.engines import Advance, ModelRecipe, Work
from layerscope.forward import BatchRunner, Plan, read_rows
from layerscope.metrics.registry import get_metric, is_plugin, register
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Row, ViewInputs
from layerscope.profiling.config import ProfileConfig
from layerscope.spectra import to_device
from layerscope.store import Shard

__all__ = ["PreparedRows", "ShardEncoder", "index_on", "make_reducer"]


def make_reducer(model: LoadedModel, sites: Sequence[Site], config: ProfileConfig) -> Reducer:
    """Return what reduces a model's states to what the chosen metrics need."""
    metrics = [get_metric(name) for name in config.metrics]
    return reducer_on(model.device).of(
        model.anatomy, sites, config.final_norm, config.options, metrics
    )


@dataclass(frozen=True)
class PreparedRows:
    """The rows of one shard and of its views, if it has any."""

    of_items: Sequence[Row]
    of_views: ViewInputs | None


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
        self.reader, self.model, self.reducer, self.config = reader, model, reducer, config
        self.runner = BatchRunner(model, batch_size)
        self.device = model.device if model.device.type == "cuda" else torch.device("cpu")
        self.empty_views = 0

    def prepare(self, plan: Plan, shard: np.ndarray) -> PreparedRows:
        """Read the rows of a shard and of its views."""
        rows, views = read_rows(self.reader, plan, shard), self.config.view_settings
        return PreparedRows(
            rows, self.reader.read_views(shard, rows, views) if views.count else None
        )

    def run(
        self, shard: np.ndarray, prepared: PreparedRows, advance: Callable[[int], None]
    ) -> Shard:
        """Encode one shard's items and their views. `advance(n)` is told of n more done."""
        pooled, values = self.make_room(len(shard))

        def keep_items(numbers: list[int], batch: Batch) -> None:
            reduced = self.reducer.reduce(batch, self.model.run, values is not None)
            where = index_on(numbers, pooled.device)
            pooled[:, where, 0] = reduced.pooled.to(pooled.device)
            if values is not None and reduced.tokens is not None:
                values[:, :, where] = reduced.tokens.to(pooled.device)
            advance(len(numbers))

        self.runner.run(prepared.of_items, keep_items)
        if prepared.of_views is not None:
            self.run_views(prepared.of_views, pooled, advance)
        self.reducer.check(pooled)
        numbers = {} if values is None else self.named(values.cpu())
        return Shard(shard, pooled.cpu().numpy(), numbers)

    def make_room(self, count: int) -> tuple[Tensor, Tensor | None]:
        """Return the memory for the vectors and the token measures (if any) of so many items."""
        sites, views = len(self.reducer.sites), self.config.n_views
        shape = (sites, count, 1 + views, self.model.width)
        pooled = torch.empty(shape, dtype=torch.float32, device=self.device)
        if not self.config.needs("tokens"):
            return pooled, None
        fields = len(self.reducer.fields)
        return pooled, torch.full(
            (fields, sites, count), torch.nan, dtype=torch.float64, device=self.device
        )

    def run_views(self, views: ViewInputs, pooled: Tensor, advance: Callable[[int], None]) -> None:
        """Run the views of a shard, item by item."""
        n = self.config.n_views
        self.empty_views += views.empty
        # one row per view, so that a batch is put into its place by a single index
        places = pooled[:, :, 1:]

        def keep_views(numbers: list[int], batch: Batch) -> None:
            reduced = self.reducer.reduce(batch, self.model.run, False)
            where = index_on(numbers, pooled.device)
            places[:, where // n, where % n] = reduced.pooled.to(pooled.device)
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


class ShardWork(Work[int, tuple[Shard, int]]):
    """A shard's number in; the shard out, with how many of its views were empty. Each worker has
    the model."""

    under_way = 2

    def __init__(
        self,
        recipe: ModelRecipe,
        items: Items,
        sites: Sequence[Site],
        config: ProfileConfig,
        plan: Plan,
        batch_size: int | None,
    ) -> None:
        self.recipe, self.sites, self.config, self.batch_size = (
            recipe,
            list(sites),
            config,
            batch_size,
        )
        self.items = items.packed()
        self.plan = replace(
            plan, rows=None
        )  # they are made again where they are needed: sending them would cost more
        self.memory = recipe.memory
        # made known to the workers, where they may not be installed
        self.plugins = [metric for metric in map(get_metric, config.metrics) if is_plugin(metric)]

    def open(self) -> int:
        """Load the model; returns the tokens per batch, so that batches are the same on every
        worker."""
        self._stack = ExitStack()
        for metric in self.plugins:
            register(metric)
        model = self.recipe.open()
        self.device = model.device.type
        model.find_shortcuts()
        self._reader = self._stack.enter_context(
            model.open_items(self.items, self.config.read_settings)
        )
        reducer = self._stack.enter_context(make_reducer(model, self.sites, self.config))
        self._encoder = ShardEncoder(self._reader, model, reducer, self.config, self.batch_size)
        if (
            self.config.n_views and model.device.type == "cuda"
        ):  # it would wait for one core of Python
            self._reader.start_views(self.config.view_settings)
        return self._encoder.runner.tokens

    def prepare(self, item: int) -> PreparedRows:
        """Rows of the shard and of its views."""
        return self._encoder.prepare(self.plan, self.plan.shards[item])

    def run(
        self, item: int, prepared: PreparedRows, advance: Advance, common: Any
    ) -> tuple[Shard, int]:
        """The shard, encoded."""
        encoder = self._encoder
        encoder.runner.tokens = min(encoder.runner.tokens, common)
        before = encoder.empty_views
        shard = encoder.run(self.plan.shards[item], prepared, advance)
        return shard, encoder.empty_views - before

    def close(self) -> None:
        """Remove the hooks."""
        self._stack.close()

    def name(self, item: int) -> str:
        """By number, and how many items it has."""
        shard = self.plan.shards[item]
        return f"shard {item} ({len(shard)} {self.items.kind} of up to {int(self.plan.lengths[shard].max())} tokens)"
