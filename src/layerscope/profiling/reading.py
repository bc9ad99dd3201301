"""Token ids (or pixels) of shards and their views, made ahead in the background where a GPU would have to wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from layerscope.data import make_views
from layerscope.data.augment_pool import ViewPool
from layerscope.data.augment_worker import open_tokenizer, token_ids
from layerscope.models import ImageModel, LoadedModel
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.plan import Plan

_FEWEST_IN_POOL = 2000  # views: fewer are made before the processes are up
_AHEAD = 2  # shards
_TRIED = 4  # texts whose tokens are compared before other processes make them


Ids = Sequence[int] | np.ndarray  # of one text; of an image, what its processor made of it


@dataclass(frozen=True)
class ViewTokens:
    """Token ids of all views of a shard, prompt by prompt, and how many had none and were replaced by their prompt."""

    ids: list[Ids]
    empty: int


def read_prompts(model: LoadedModel, plan: Plan, shard: np.ndarray) -> Sequence[Ids]:
    """Token ids of a shard's prompts."""
    if plan.ids is not None:
        return [plan.ids[i] for i in shard]
    if plan.images is not None and isinstance(model, ImageModel):
        return model.reader.read(plan.images, shard)
    return model.tokenize([plan.texts[i] for i in shard], plan.max_length).ids


def read_views(
    model: LoadedModel, plan: Plan, shard: np.ndarray, prompts: Sequence[Ids], config: ProfileConfig, pool: ViewPool | None
) -> ViewTokens:
    """Token ids of a shard's views."""
    if plan.images is not None and isinstance(model, ImageModel):
        return ViewTokens(list(model.reader.views(plan.images, shard, config.n_views, config.seed)), 0)
    texts, n = [plan.texts[i] for i in shard], config.n_views
    ids: list[Ids]
    if pool is not None and pool.tokenizer is not None:
        ids = list(pool.make_ids(texts))
    else:
        made = make_views(texts, n, config.seed, config.augmenter) if pool is None else pool.make(texts)
        ids = list(model.tokenize([view for views in made for view in views], plan.max_length).ids)
    empty = 0
    for i, row in enumerate(ids):
        if not len(row):  # an augmentation that left nothing the tokenizer knows: the prompt itself stands in
            ids[i] = prompts[i // n]
            empty += 1
    return ViewTokens(ids, empty)


def serialised_tokenizer(model: LoadedModel, plan: Plan) -> str | None:
    """A model's fast tokenizer for other processes; None where it has none, or where it alone gives other tokens."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    serialised = backend.to_str()
    some = [plan.texts[i] for i in plan.shards[0][:_TRIED]]
    here = model.tokenize(some, plan.max_length).ids
    return serialised if token_ids(open_tokenizer(serialised, plan.max_length), some) == here else None


class ReadAhead:
    """Reads shards in a thread, a few ahead of the one that is asked for. Use it as a context."""

    def __init__(self, model: LoadedModel, plan: Plan, shards: Sequence[np.ndarray], config: ProfileConfig) -> None:
        self.model, self.plan, self.config = model, plan, config
        self._order = {int(shard[0]): i for i, shard in enumerate(shards)}
        self._shards = list(shards)
        self._begun = 0
        self._prompts: dict[int, Future[Sequence[Ids]]] = {}
        self._views: dict[int, Future[ViewTokens]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layerscope-reading")
        many = config.n_views * sum(len(shard) for shard in shards) >= _FEWEST_IN_POOL
        self._pool = None
        if many and plan.images is None:  # a reader of images has workers of its own
            fast = serialised_tokenizer(model, plan)
            limit = plan.max_length if fast is not None else None
            self._pool = ViewPool(config.n_views, config.seed, config.augmenter, tokenizer=fast, max_length=limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)
        if self._pool is not None:
            self._pool.close()

    def _begin(self, upto: int) -> None:
        while self._begun < min(upto, len(self._shards)):
            i, shard = self._begun, self._shards[self._begun]
            self._prompts[i] = self._thread.submit(read_prompts, self.model, self.plan, shard)
            if self.config.n_views:
                self._views[i] = self._thread.submit(self._read_views, i, shard)
            self._begun += 1

    def _read_views(self, index: int, shard: np.ndarray) -> ViewTokens:
        prompts = self._prompts[index].result()  # the one thread has read them before
        return read_views(self.model, self.plan, shard, prompts, self.config, self._pool)

    def prompts(self, shard: np.ndarray) -> Sequence[Ids]:
        """Token ids of a shard's prompts; the shards after it are begun."""
        index = self._order[int(shard[0])]
        self._begin(index + 1 + _AHEAD)
        return self._prompts[index].result()

    def views(self, shard: np.ndarray) -> ViewTokens:
        """Token ids of a shard's views; the shard is forgotten after this."""
        index = self._order[int(shard[0])]
        self._prompts.pop(index - 1, None)
        return self._views.pop(index).result()
