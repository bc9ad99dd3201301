"""The forward passes of one shard: prompts and their views through the model, reduced to a `Shard`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from layerscope.capture import Reducer, make_batch, run_batches, token_budget
from layerscope.capture.reduce import TOKEN_FIELDS
from layerscope.data import make_views
from layerscope.models import LoadedModel
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.plan import Plan
from layerscope.store import Shard


class Encoder:
    """Runs shards through a model; remembers the batch size that fits in memory."""

    def __init__(self, model: LoadedModel, reducer: Reducer, config: ProfileConfig, batch_size: int | None = None) -> None:
        self.model, self.reducer, self.config, self.batch_size = model, reducer, config, batch_size
        self.tokens = token_budget(model.device, model.width)
        self.empty_views = 0

    def run(self, plan: Plan, shard: np.ndarray, advance: Callable[[int], None]) -> Shard:
        """Encode one shard's prompts and their views. `advance(n)` is told of n more texts done."""
        texts = [plan.texts[i] for i in shard]
        sites, views = len(self.reducer.sites), self.config.n_views
        pooled = np.empty((sites, len(texts), 1 + views, self.model.width), dtype=np.float32)
        values = {name: np.full((sites, len(texts)), np.nan) for name in TOKEN_FIELDS} if self.config.needs("tokens") else {}
        ids = self.model.tokenize(texts, plan.max_length).ids

        def keep_prompts(items: list[int]) -> None:
            reduced = self._reduce([ids[i] for i in items], bool(values))
            pooled[:, items, 0] = reduced.pooled
            for name, array in reduced.tokens.items():
                values[name][:, items] = array
            advance(len(items))

        self.tokens = run_batches([len(row) for row in ids], keep_prompts, self.tokens, self.batch_size)
        if views:
            self._run_views(texts, ids, plan.max_length, pooled, advance)
        return Shard(shard, pooled, values)

    def _run_views(
        self, texts: list[str], ids: list[list[int]], limit: int, pooled: np.ndarray, advance: Callable[[int], None]
    ) -> None:
        n = self.config.n_views
        made = make_views(texts, n, self.config.seed, self.config.augmenter)
        view_ids = self.model.tokenize([view for views in made for view in views], limit).ids
        for i, row in enumerate(view_ids):
            if not row:  # an augmentation that left nothing the tokenizer knows: the prompt itself stands in
                view_ids[i] = ids[i // n]
                self.empty_views += 1

        def keep_views(items: list[int]) -> None:
            reduced = self._reduce([view_ids[i] for i in items], False)
            prompt, view = np.divmod(np.array(items), n)
            pooled[:, prompt, 1 + view] = reduced.pooled
            advance(len(items))

        self.tokens = run_batches([len(row) for row in view_ids], keep_views, self.tokens, self.batch_size)

    def _reduce(self, ids: list[list[int]], token_level: bool):  # type: ignore[no-untyped-def]
        batch = make_batch(ids, self.model.pad_id, self.model.device)
        return self.reducer.run(batch, self.model.run, token_level)
