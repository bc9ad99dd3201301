"""The forward passes of one shard: prompts and their views through the model, reduced to a `Shard`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import Reducer, run_batches, token_budget
from layerscope.capture.reduce import TOKEN_FIELDS, Kept
from layerscope.models import ImageModel, LoadedModel
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.plan import Plan
from layerscope.profiling.reading import Ids, ReadAhead, read_prompts, read_views
from layerscope.store import Shard


class Encoder:
    """Runs shards through a model; remembers the batch size that fits in memory.

    On a GPU a shard's results stay on the device until all its batches are queued: the host waits once per shard. With
    `on_device` the pooled vectors stay there for good. `ahead` makes the texts' tokens before they are asked for.
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
        sites, views, n = len(self.reducer.sites), self.config.n_views, len(shard)
        device = self.model.device if self.model.device.type == "cuda" else torch.device("cpu")
        pooled = torch.empty((sites, n, 1 + views, self.model.width), dtype=torch.float32, device=device)
        wanted = self.config.needs("tokens")
        values = torch.full((len(TOKEN_FIELDS), sites, n), torch.nan, dtype=torch.float64, device=device) if wanted else None
        ids = read_prompts(self.model, plan, shard) if self.ahead is None else self.ahead.prompts(shard)

        def keep_prompts(items: list[int]) -> None:
            kept = self._reduce([ids[i] for i in items], wanted)
            where = _index(items, device)
            pooled[:, where, 0] = kept.pooled.to(device)
            if values is not None and kept.tokens is not None:
                values[:, :, where] = kept.tokens.to(device)
            advance(len(items))

        self.tokens = run_batches(self.model.lengths(ids), keep_prompts, self.tokens, self.batch_size)
        if views:
            self._run_views(plan, shard, ids, pooled, advance)
        self.reducer.check(pooled)
        numbers = {} if values is None else dict(zip(TOKEN_FIELDS, values.cpu().numpy(), strict=True))
        return Shard(shard, pooled if self.on_device else pooled.cpu().numpy(), numbers)  # type: ignore[arg-type]

    def _run_views(
        self, plan: Plan, shard: np.ndarray, ids: Sequence[Ids], pooled: Tensor, advance: Callable[[int], None]
    ) -> None:
        n = self.config.n_views
        ahead = self.ahead
        tokens = read_views(self.model, plan, shard, ids, self.config, None) if ahead is None else ahead.views(shard)
        self.empty_views += tokens.empty
        # one row per view, so that a batch is put into its place by a single index
        rows = pooled[:, :, 1:]

        def keep_views(items: list[int]) -> None:
            kept = self._reduce([tokens.ids[i] for i in items], False)
            where = _index(items, pooled.device)
            rows[:, where // n, where % n] = kept.pooled.to(pooled.device)
            advance(len(items))

        self.tokens = run_batches(self.model.lengths(tokens.ids), keep_views, self.tokens, self.batch_size)

    def _reduce(self, ids: list[Ids], token_level: bool) -> Kept:
        return self.reducer.reduce(self.model.make_batch(ids), self.model.run, token_level)


def _index(items: list[int], device: torch.device) -> Tensor:
    index = torch.tensor(items)
    return index.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else index
