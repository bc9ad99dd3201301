"""A plan that is being made while its first shard is run: a GPU does not wait until all texts are tokenised.

For runs whose shards stay in memory. What a folder holds of a run is told by the numbers of shards: their plan is made whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from types import TracebackType
from typing import Self

import numpy as np

from layerscope.models import LoadedModel
from layerscope.profiling.plan import Part, Plan, plan_texts, read_part, token_limit

_FIRST_TOKENS = 32768  # of the first shard: a GPU has to do longer than the host takes to give it the work and go on
_FIRST_TEXTS = (16, 256)  # at least, at most


class Planning:
    """A plan that is being made: a first shard of `max_length`-token texts can be run before the others are tokenised.

    The first shard holds the texts with the most characters: memory that will not do is found out at once, and which they are
    does not depend on the order of the texts. Use it as a context.
    """

    def __init__(self, model: LoadedModel, texts: Sequence[str], max_length: int, shard_size: int, early: bool = True) -> None:
        self.model, self.texts, self.shard_size = model, texts, shard_size
        self.limit = token_limit(model, max_length)
        fewest, most = _FIRST_TEXTS
        count = min(shard_size, max(fewest, min(most, _FIRST_TOKENS // self.limit)))
        self._first: Part | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="layerscope-planning")
        if early and len(texts) > 2 * count:
            chosen = _longest(texts, count)
            first = read_part(model, texts, chosen, self.limit)
            self._first = first if first.lengths.any() and first.tokens is not None else None
        others = np.arange(len(texts))
        if self._first is not None:
            others = np.setdiff1d(others, self._first.prompts, assume_unique=True)
        self._go_on = Event()
        self._rest: Future[Part] = self._thread.submit(read_part, model, texts, others, self.limit, self._go_on)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._go_on.set()
        self._thread.shutdown(cancel_futures=True)

    @property
    def early(self) -> bool:
        """Whether there is a first shard before the whole plan."""
        return self._first is not None

    def first(self) -> Plan | None:
        """The plan of the first shard alone; None where all texts must be tokenised first."""
        first = self._first
        if first is None or first.tokens is None:
            return None
        prompts = first.prompts[first.lengths > 0]
        ends = np.cumsum(first.lengths)
        ids = {int(p): first.tokens[end - n : end] for p, n, end in zip(first.prompts, first.lengths, ends, strict=True)}
        nothing = np.empty(0)
        return Plan(self.texts, nothing, nothing, nothing, 0, self.limit, [prompts], ids)

    def plan(self) -> Plan:
        """The whole plan, its first shard as given before."""
        self._go_on.set()  # whoever asks has given the GPU the first shard
        rest = self._rest.result()
        parts = [rest] if self._first is None else [self._first, rest]
        return plan_texts(self.model, self.texts, self.limit, self.shard_size, parts)


def _longest(texts: Sequence[str], count: int) -> np.ndarray:
    """The texts with the most characters; among equals, by what they say."""
    sizes = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    least = np.partition(sizes, -count)[-count]
    some = np.flatnonzero(sizes >= least).tolist()
    return np.array(sorted(some, key=lambda i: (-len(texts[i]), texts[i]))[:count])
