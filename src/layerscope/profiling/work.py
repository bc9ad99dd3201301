"""Shards of a profile as work for many workers: each holds the model, and encodes whole shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from layerscope.capture import Reducer, Site
from layerscope.data.augment_pool import ViewPool
from layerscope.engines.base import Advance, Work
from layerscope.engines.models import ModelRecipe
from layerscope.engines.packing import packed
from layerscope.metrics.registry import get_metric, is_plugin, register
from layerscope.models import LoadedModel
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.passes import Encoder
from layerscope.profiling.plan import Plan
from layerscope.profiling.reading import Ids, ViewTokens, read_prompts, read_views, serialised_tokenizer
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


@dataclass(frozen=True)
class Read:
    """The token ids of one shard, where `Encoder` looks for those read ahead."""

    ids: Sequence[Ids]
    made: ViewTokens | None

    def prompts(self, shard: np.ndarray) -> Sequence[Ids]:
        """Token ids of the shard's prompts."""
        return self.ids

    def views(self, shard: np.ndarray) -> ViewTokens:
        """Token ids of the shard's views."""
        assert self.made is not None
        return self.made


class ShardWork(Work[int, tuple[Shard, int]]):
    """A shard's number in; the shard out, with how many of its views were empty."""

    under_way = 2

    def __init__(
        self, recipe: ModelRecipe, sites: Sequence[Site], config: ProfileConfig, plan: Plan, batch_size: int | None
    ) -> None:
        self.recipe, self.sites, self.config, self.batch_size = recipe, list(sites), config, batch_size
        # tokens are made again where they are needed: sending them would cost more
        self.plan = replace(plan, texts=packed(plan.texts), ids=None)
        self.memory = recipe.memory
        # made known to the workers, where they may not be installed
        self.plugins = [metric for metric in map(get_metric, config.metrics) if is_plugin(metric)]

    def open(self) -> int:
        """Load the model; returns the tokens per batch, so that batches are the same on every worker."""
        self._stack = ExitStack()
        for metric in self.plugins:
            register(metric)
        self._model = self.recipe.open()
        reducer = self._stack.enter_context(make_reducer(self._model, self.sites, self.config))
        self._encoder = Encoder(self._model, reducer, self.config, self.batch_size)
        self._pool = None
        views = self.config.n_views
        if views and self.plan.images is None and self._model.device.type == "cuda":  # it would wait for one core of Python
            fast = serialised_tokenizer(self._model, self.plan)
            limit = self.plan.max_length if fast is not None else None
            pool = ViewPool(views, self.config.seed, self.config.augmenter, tokenizer=fast, max_length=limit)
            self._pool = self._stack.enter_context(pool)
        return self._encoder.tokens

    def prepare(self, item: int) -> Read:
        """Token ids of the shard and of its views."""
        shard = self.plan.shards[item]
        ids = read_prompts(self._model, self.plan, shard)
        made = read_views(self._model, self.plan, shard, ids, self.config, self._pool) if self.config.n_views else None
        return Read(ids, made)

    def run(self, item: int, prepared: Read, advance: Advance, common: Any) -> tuple[Shard, int]:
        """The shard, encoded."""
        encoder = self._encoder
        encoder.tokens = min(encoder.tokens, common)
        encoder.ahead = prepared  # type: ignore[assignment]
        before = encoder.empty_views
        shard = encoder.run(self.plan, self.plan.shards[item], advance)
        return shard, encoder.empty_views - before

    def close(self) -> None:
        """Remove the hooks."""
        self._stack.close()

    def name(self, item: int) -> str:
        """By number, and how many texts it has."""
        shard = self.plan.shards[item]
        return f"shard {item} ({len(shard)} texts of up to {int(self.plan.lengths[shard].max())} tokens)"
