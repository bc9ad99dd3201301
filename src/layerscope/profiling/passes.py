"""The forward passes of one shard: prompts and their views through the model, reduced to a `Shard`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Reducer, run_batches, token_budget
from layerscope.capture.reduce import ReducedTensors
from layerscope.models import ImageModel, LoadedModel
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.plan import Plan
from layerscope.profiling.reading import Ids, ReadAhead, read_prompts, read_views
from layerscope.store import Shard


@dataclass
class Begun:
    """A shard on its way: on a GPU its passes are queued, and nobody has waited for them yet."""

    shard: np.ndarray
    ids: Sequence[Ids]
    pooled: Tensor
    values: Tensor | None


@dataclass
class Queued:
    """A shard whose passes are all queued, with what the host will read of it when they are done."""

    begun: Begun
    finite: Tensor
    values: Tensor | None
    done: torch.cuda.Event | None


class Encoder:
    """Runs shards through a model; remembers the batch size that fits in memory.

    On a GPU a shard's results stay on the device until all its batches are queued: the host waits once per shard (`run`), or
    for a shard while the next one's passes are queued (`begin`, `run_views`, `queue`, `finish`). With `on_device` the pooled
    vectors stay there for good. `ahead` makes the texts' tokens before they are asked for.
    """

    def __init__(
        self,
        model: LoadedModel,
        reducer: Reducer,
        config: ProfileConfig,
        batch_size: int | None = None,
        *,
        on_device: bool = False,
        ahead: ReadAhead | None = None,
    ) -> None:
        self.model, self.reducer, self.config, self.batch_size = model, reducer, config, batch_size
        if isinstance(model, ImageModel):
            model.set_reading(config.tokens, config.image_pooling)
        self.on_device, self.ahead = on_device, ahead
        self.tokens = token_budget(model.device, model.width)
        self.empty_views = 0

    def run(self, plan: Plan, shard: np.ndarray, advance: Callable[[int], None]) -> Shard:
        """Encode one shard's prompts and their views. `advance(n)` is told of n more texts done."""
        begun = self.begin(plan, shard, advance)
        if self.config.n_views:
            self.run_views(plan, begun, advance)
        return self.finish(self.queue(begun))

    def begin(self, plan: Plan, shard: np.ndarray, advance: Callable[[int], None]) -> Begun:
        """Run the prompts of a shard."""
        sites, views, n = len(self.reducer.sites), self.config.n_views, len(shard)
        device = self.model.device if self.model.device.type == "cuda" else torch.device("cpu")
        pooled = torch.empty((sites, n, 1 + views, self.model.width), dtype=torch.float32, device=device)
        wanted = self.config.needs("tokens")
        values = (
            torch.full((len(self.reducer.fields), sites, n), torch.nan, dtype=torch.float64, device=device) if wanted else None
        )
        ids = read_prompts(self.model, plan, shard) if self.ahead is None else self.ahead.prompts(shard)

        def keep_prompts(items: list[int]) -> None:
            kept = self._reduce([ids[i] for i in items], wanted)
            where = _index(items, device)
            pooled[:, where, 0] = kept.pooled.to(device)
            if values is not None and kept.tokens is not None:
                values[:, :, where] = kept.tokens.to(device)
            advance(len(items))

        self.tokens = run_batches(self.model.lengths(ids), keep_prompts, self.tokens, self.batch_size)
        return Begun(shard, ids, pooled, values)

    def run_views(self, plan: Plan, begun: Begun, advance: Callable[[int], None]) -> None:
        """Run the views of a shard whose prompts have been run."""
        n, pooled = self.config.n_views, begun.pooled
        ahead = self.ahead
        if ahead is None:
            tokens = read_views(self.model, plan, begun.shard, begun.ids, self.config, None)
        else:
            tokens = ahead.views(begun.shard)
        self.empty_views += tokens.empty
        # one row per view, so that a batch is put into its place by a single index
        rows = pooled[:, :, 1:]

        def keep_views(items: list[int]) -> None:
            kept = self._reduce([tokens.ids[i] for i in items], False)
            where = _index(items, pooled.device)
            rows[:, where // n, where % n] = kept.pooled.to(pooled.device)
            advance(len(items))

        self.tokens = run_batches(self.model.lengths(tokens.ids), keep_views, self.tokens, self.batch_size)

    def queue(self, begun: Begun) -> Queued:
        """Have the device look at its results and send the host what it needs of them; nothing waits."""
        finite = torch.isfinite(begun.pooled).all()
        if begun.pooled.device.type != "cuda":
            return Queued(begun, finite, begun.values, None)
        values = None if begun.values is None else _sent(begun.values)
        return Queued(begun, _sent(finite), values, torch.cuda.current_stream(begun.pooled.device).record_event())

    def finish(self, queued: Queued) -> Shard:
        """Wait for a shard and check it."""
        if queued.done is not None:
            queued.done.synchronize()
        pooled = queued.begun.pooled
        if not bool(queued.finite):
            self.reducer.check(pooled)  # which finds the site and raises
        numbers = {} if queued.values is None else dict(zip(self.reducer.fields, queued.values.numpy(), strict=True))
        if numbers:
            self.reducer.check_values(numbers)
        return Shard(queued.begun.shard, pooled if self.on_device else pooled.cpu().numpy(), numbers)  # type: ignore[arg-type]

    def _reduce(self, ids: list[Ids], token_level: bool) -> ReducedTensors:
        return self.reducer.reduce(self.model.make_batch(ids), self.model.run, token_level)


def _sent(tensor: Tensor) -> Tensor:
    """A copy on its way to the host."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _index(items: list[int], device: torch.device) -> Tensor:
    index = torch.tensor(items)
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index
