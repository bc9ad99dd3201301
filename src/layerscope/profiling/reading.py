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


def view_pool(model: LoadedModel, config: ProfileConfig, prompts: int) -> ViewPool | None:
    """Processes that make the views of so many prompts; None where they would not be worth their start."""
    many = config.n_views * prompts >= _FEWEST_IN_POOL
    if not many or isinstance(model, ImageModel):  # a reader of images has workers of its own
        return None
    return ViewPool(config.n_views, config.seed, config.augmenter)


class ReadAhead:
    """Reads shards in threads, a few ahead of the one that is asked for. Use it as a context.

    Prompts and views are read by a thread each: who has prompts to run need not wait for views. `pool` makes the views; without
    one it is started here. Shards may be added to a plan that grows.
    """

    def __init__(
        self,
        model: LoadedModel,
        plan: Plan,
        shards: Sequence[np.ndarray],
        config: ProfileConfig,
        pool: ViewPool | None = None,
    ) -> None:
        self.model, self.config = model, config
        self._order: dict[int, int] = {}
        self._shards: list[np.ndarray] = []
        self._prompts: dict[int, Future[Sequence[Ids]]] = {}
        self._views: dict[int, Future[ViewTokens]] = {}
        self._views_begun = self._views_given = 0
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=f"layerscope-reading-{what}") for what in ("prompts", "views")]
        self._own = view_pool(model, config, sum(len(shard) for shard in shards)) if pool is None else None
        self._pool = pool or self._own
        self._pool_is_ready = self._pool is None
        self.add(plan, shards)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)
        if self._own is not None:
            self._own.close()

    def add(self, plan: Plan, shards: Sequence[np.ndarray]) -> None:
        """More shards to read, of a plan that holds those so far."""
        self.plan = plan
        for shard in shards:
            self._order[int(shard[0])] = len(self._shards)
            self._shards.append(shard)
        self._begin_views()

    def _begin_prompts(self, index: int) -> None:
        if self.plan.ids is None and index not in self._prompts:
            self._prompts[index] = self._threads[0].submit(read_prompts, self.model, self.plan, self._shards[index])

    def _prompt_ids(self, index: int) -> Sequence[Ids]:
        """Those that the plan holds are at hand."""
        reading = self._prompts.get(index)
        return read_prompts(self.model, self.plan, self._shards[index]) if reading is None else reading.result()

    def _begin_views(self) -> None:
        upto = min(self._views_given + 1 + _AHEAD, len(self._shards)) if self.config.n_views else 0
        for index in range(self._views_begun, upto):
            self._begin_prompts(index)
            self._views[index] = self._threads[1].submit(self._read_views, index)
        self._views_begun = max(self._views_begun, upto)

    def _read_views(self, index: int) -> ViewTokens:
        if self._pool is not None and not self._pool_is_ready:  # here: it takes a while, and prompts need not wait for it
            self._pool.set_tokenizer(serialised_tokenizer(self.model, self.plan), self.plan.max_length)
            self._pool_is_ready = True
        return read_views(self.model, self.plan, self._shards[index], self._prompt_ids(index), self.config, self._pool)

    def prompts(self, shard: np.ndarray) -> Sequence[Ids]:
        """Token ids of a shard's prompts; the shards after it are begun."""
        index = self._order[int(shard[0])]
        for i in range(index, min(index + 1 + _AHEAD, len(self._shards))):
            self._begin_prompts(i)
        ids = self._prompt_ids(index)
        if not self.config.n_views:
            self._prompts.pop(index, None)
        return ids

    def has_views(self, shard: np.ndarray) -> bool:
        """Whether nobody would wait for a shard's views."""
        made = self._views.get(self._order[int(shard[0])])
        return made is not None and made.done()

    def views(self, shard: np.ndarray) -> ViewTokens:
        """Token ids of a shard's views; the shard is forgotten after this."""
        index = self._order[int(shard[0])]
        self._views_given = max(self._views_given, index + 1)
        self._begin_views()
        made = self._views.pop(index).result()
        self._prompts.pop(index, None)
        return made

    def end_views(self) -> None:
        """Let the processes that make views go, once all have been read: while a GPU still works, nobody waits for that."""
        if self._pool is not None:
            self._pool.close()
