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
from layerscope.data.items import Items
from layerscope.engines import Advance, ModelRecipe, Work
from layerscope.forward import BatchRunner, Plan, Prefetcher, read_rows
from layerscope.metrics.registry import get_metric, is_plugin, register
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Row, ViewInputs
from layerscope.profiling.config import ProfileConfig
from layerscope.spectra import Sent, to_device
from layerscope.store import Shard


def make_reducer(model: LoadedModel, sites: Sequence[Site], config: ProfileConfig) -> Reducer:
    """What reduces a model's states to what the chosen metrics need."""
    return Reducer(
        model.anatomy,
        sites,
        config.final_norm,
        config.options,
        entropy="prompt_entropy" in config.metrics,
        curvature="curvature" in config.metrics,
        measured=[metric for metric in config.token_metrics() if metric.fused_field() is None],
    )


@dataclass
class PendingShard:
    """A shard whose items have been run: on a GPU its passes are queued, and the host has not
    waited for them yet."""

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


class ShardEncoder:
    """Runs shards through a model.

    On a GPU a shard's results stay on the device until all its batches are queued: the host waits
    once per shard (`run`), or for a shard while the next one's passes are queued (`run_items_of`,
    `run_views`, `queue`, `finish`). With `on_device` the pooled vectors stay there for good. With a
    `prefetcher`, rows are read before they are asked for.
    """

    def __init__(
        self,
        reader: ItemReader,
        model: LoadedModel,
        reducer: Reducer,
        config: ProfileConfig,
        batch_size: int | None = None,
        *,
        on_device: bool = False,
        prefetcher: Prefetcher | PreparedRows | None = None,
    ) -> None:
        self.reader, self.model, self.reducer, self.config = reader, model, reducer, config
        self.on_device, self.prefetcher = on_device, prefetcher
        self.runner = BatchRunner(model, batch_size)
        self.empty_views = 0

    def run(self, plan: Plan, shard: np.ndarray, advance: Callable[[int], None]) -> Shard:
        """Encode one shard's items and their views. `advance(n)` is told of n more done."""
        pending = self.run_items_of(plan, [shard], advance)[0]
        if self.config.n_views:
            self.run_views(plan, pending, advance)
        return self.finish(self.queue(pending))

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
        pending = [self._make_room(plan, shard) for shard in shards]
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
                where = _index([i for _, i in here], device)
                some = (
                    slice(None)
                    if len(here) == len(numbers)
                    else _index([k for k, _ in here], device)
                )
                one.pooled[:, where, 0] = reduced.pooled.to(device)[:, some]
                if one.values is not None and reduced.tokens is not None:
                    one.values[:, :, where] = reduced.tokens.to(device)[:, :, some]
            advance(len(numbers))

        self.runner.run([row for one in pending for row in one.rows], keep_items)
        return pending

    def _make_room(self, plan: Plan, shard: np.ndarray) -> PendingShard:
        """A shard with its rows and the memory for what is kept of it."""
        sites, views, n = len(self.reducer.sites), self.config.n_views, len(shard)
        device = self.model.device if self.model.device.type == "cuda" else torch.device("cpu")
        pooled = torch.empty(
            (sites, n, 1 + views, self.model.width), dtype=torch.float32, device=device
        )
        fields, wanted = len(self.reducer.fields), self.config.needs("tokens")
        values = (
            torch.full((fields, sites, n), torch.nan, dtype=torch.float64, device=device)
            if wanted
            else None
        )
        rows = (
            read_rows(self.reader, plan, shard)
            if self.prefetcher is None
            else self.prefetcher.rows(shard)
        )
        return PendingShard(shard, rows, pooled, values)

    def run_views(self, plan: Plan, pending: PendingShard, advance: Callable[[int], None]) -> None:
        """Run the views of a shard whose items have been run."""
        n, pooled = self.config.n_views, pending.pooled
        if self.prefetcher is None:
            views = self.reader.read_views(pending.shard, pending.rows, self.config.view_settings)
        else:
            views = self.prefetcher.views(pending.shard)
        self.empty_views += views.empty
        # one row per view, so that a batch is put into its place by a single index
        places = pooled[:, :, 1:]

        def keep_views(numbers: list[int], batch: Batch) -> None:
            reduced = self.reducer.reduce(batch, self.model.run, False)
            where = _index(numbers, pooled.device)
            places[:, where // n, where % n] = reduced.pooled.to(pooled.device)
            advance(len(numbers))

        self.runner.run(views.rows, keep_views)

    def queue(self, pending: PendingShard) -> QueuedShard:
        """Have the device check its results and send the host what it needs of them; nothing
        waits."""
        finite = torch.isfinite(pending.pooled).all()
        values = None if pending.values is None else Sent(pending.values)
        return QueuedShard(pending, Sent(finite), values)

    def finish(self, queued: QueuedShard) -> Shard:
        """Wait for a shard and check it."""
        pooled = queued.pending.pooled
        if not bool(queued.finite.get()):
            self.reducer.check(pooled)  # which finds the site and raises
        numbers = (
            {}
            if queued.values is None
            else dict(zip(self.reducer.fields, queued.values.get().numpy(), strict=True))
        )
        if numbers:
            self.reducer.check_values(numbers)
        return Shard(
            queued.pending.shard,
            pooled if self.on_device else pooled.cpu().numpy(),  # type: ignore[arg-type]
            numbers,
        )


def _index(numbers: list[int], device: torch.device) -> Tensor:
    return to_device(torch.tensor(numbers), device)


@dataclass(frozen=True)
class PreparedRows:
    """The rows of one shard, in the place of a prefetcher."""

    of_items: Sequence[Row]
    of_views: ViewInputs | None

    def rows(self, shard: np.ndarray) -> Sequence[Row]:
        """The rows of the shard's items."""
        return self.of_items

    def views(self, shard: np.ndarray) -> ViewInputs:
        """The rows of the shard's views."""
        assert self.of_views is not None
        return self.of_views


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
        shard = self.plan.shards[item]
        rows = read_rows(self._reader, self.plan, shard)
        views = (
            self._reader.read_views(shard, rows, self.config.view_settings)
            if self.config.n_views
            else None
        )
        return PreparedRows(rows, views)

    def run(
        self, item: int, prepared: PreparedRows, advance: Advance, common: Any
    ) -> tuple[Shard, int]:
        """The shard, encoded."""
        encoder = self._encoder
        encoder.runner.tokens = min(encoder.runner.tokens, common)
        encoder.prefetcher = prepared
        before = encoder.empty_views
        shard = encoder.run(self.plan, self.plan.shards[item], advance)
        return shard, encoder.empty_views - before

    def close(self) -> None:
        """Remove the hooks."""
        self._stack.close()

    def name(self, item: int) -> str:
        """By number, and how many items it has."""
        shard = self.plan.shards[item]
        return f"shard {item} ({len(shard)} {self.items.kind} of up to {int(self.plan.lengths[shard].max())} tokens)"
