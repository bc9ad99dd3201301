"""The beginning that many texts share, read once: the keys and values of a template's first
tokens, handed to every batch.

A prompt begins alike for every text ("After thinking step by step, this sentence: …"). In a decoder
no later token changes those states, so they need not be computed for every text. Models that keep
no ordinary cache of keys and values are run whole.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from layerscope.capture.batches import Batch
from layerscope.models import modules
from layerscope.models.loaded import LoadedModel

MIN_TOKENS = 3
MIN_SHARE = 0.05
"""Of the tokens of all texts: less is not worth the detour."""

# of the largest number; half precision rounds every sum
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
_HALF_TOLERANCE = 0.05
_WINDOWS = ("sliding_window", "attention_chunk_size")


def common_tokens(rows: Sequence[Sequence[int]], limit: int) -> int:
    """Return with how many equal tokens all rows begin, at most `limit`; one token of every row is
    left.

    >>> common_tokens([[1, 2, 3, 4], [1, 2, 3]], limit=5)
    2
    """
    count = min(limit, *(len(row) - 1 for row in rows)) if rows else 0
    while count > 0 and any(list(row[:count]) != list(rows[0][:count]) for row in rows):
        count -= 1
    return max(0, count)


class SharedPrefix:
    """The first tokens of many texts, read once; `run` reads batches of what follows them."""

    def __init__(self, model: LoadedModel, ids: Sequence[int]) -> None:
        self.model, self.ids = model, list(ids)
        tokens = torch.tensor([self.ids], device=model.device)
        with torch.inference_mode():
            output = model.module(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=True
            )
        self._cache: Any = output.past_key_values

    @classmethod
    def of(
        cls,
        model: LoadedModel,
        rows: Sequence[Sequence[int]],
        limit: int,
        previous: Self | None = None,
    ) -> Self | None:
        """Return the prefix that the rows share, where it is worth it and the model can be read so;
        `previous` is taken again where it is the same.

        Two of the rows show once whether a model can be read so.
        """
        count = common_tokens(rows, limit)
        if count < MIN_TOKENS or count * len(rows) < MIN_SHARE * sum(len(row) for row in rows):
            return None
        if any(len(row) > window for window in _windows(model) for row in rows):
            return None
        if model.shares_prefixes is None:
            model.shares_prefixes = _takes_cache(model) and cls._is_exact(model, rows, count)
        if not model.shares_prefixes:
            return None
        ids = list(rows[0][:count])
        return previous if previous is not None and previous.ids == ids else cls(model, ids)

    @classmethod
    def _is_exact(cls, model: LoadedModel, rows: Sequence[Sequence[int]], count: int) -> bool:
        """Return whether two of the rows, the shorter one padded, have the same states both
        ways."""
        ordered = sorted(rows, key=len)
        pair = [list(ordered[0]), list(ordered[-1][: len(ordered[0]) + 4])]
        if len(pair[0]) == len(pair[1]) and len(pair[0]) > count + 1:
            pair[0].pop()
        whole = model.make_batch(pair)
        end = model.make_batch([row[count:] for row in pair])
        output = modules.run(model.module, whole.input_ids, whole.whole_mask)
        expected = modules.first(output)[:, count:]
        try:
            cache = cls(model, pair[0][:count])._cache_for(len(pair))
            output = modules.run(model.module, end.input_ids, whole.whole_mask, cache=cache)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            return False  # the cache of this architecture works in another way
        states = modules.first(output)
        if not isinstance(states, Tensor) or states.shape != expected.shape:
            return False
        real = end.whole_mask.bool()
        error = (expected - states)[real].abs().max() / expected[real].abs().max()
        # False for NaN: the usual way tells where they are
        return bool(error <= _TOLERANCE.get(expected.dtype, _HALF_TOLERANCE))

    def run(self, batch: Batch) -> Any:
        """Run the model on a batch of texts without these tokens, padded on the right."""
        cache = self._cache_for(len(batch.input_ids))
        return self.model.forward(batch.input_ids, batch.whole_mask, cache)

    def _cache_for(self, count: int) -> Any:
        """Return the cache for so many texts: a copy, because a pass adds its own keys and
        values."""
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(count)
        return cache


def _takes_cache(model: LoadedModel) -> bool:
    """Return whether the model takes keys and values of earlier tokens, and no token sees later
    ones."""
    needed = {"input_ids", "attention_mask", "past_key_values", "use_cache"}
    takes = needed <= modules.forward_parameters(model.module)
    return takes and not model.identity.get("bidirectional")


def _windows(model: LoadedModel) -> list[int]:
    """Return how many tokens back attention reaches, where that is limited; longer texts are run
    whole."""
    config = getattr(model.module, "config", None)
    return [size for name in _WINDOWS if isinstance(size := getattr(config, name, None), int)]
