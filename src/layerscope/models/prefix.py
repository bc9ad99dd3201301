"""What many texts begin with, read once: the keys and values of a template's first tokens, handed
to every batch.

A prompt begins alike for every text ("After thinking step by step, this sentence: …"). In a decoder
no later token changes those states, so that they need not be computed for every text. Models that
keep no ordinary cache of keys and values are run whole.
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

LEAST_TOKENS = 3
LEAST_SHARE = 0.05
"""Of the tokens of all texts: less is not worth the detour."""

_TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-4,
}  # of the largest number; half precision rounds every sum
_HALF_TOLERANCE = 0.05
_WINDOWS = ("sliding_window", "attention_chunk_size")


def common_tokens(rows: Sequence[Sequence[int]], most: int) -> int:
    """With how many equal tokens all rows begin, at most `most`; one token of every row is left.

    >>> common_tokens([[1, 2, 3, 4], [1, 2, 3]], most=5)
    2
    """
    count = min(most, *(len(row) - 1 for row in rows)) if rows else 0
    first = list(rows[0][:count]) if rows else []
    while count > 0 and any(list(row[:count]) != first[:count] for row in rows):
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
        cls, model: LoadedModel, rows: Sequence[Sequence[int]], most: int, known: Self | None = None
    ) -> Self | None:
        """What the rows share, where it is worth it and the model can be read so; `known` is taken
        again where it is the same.

        Whether a model can is tried once, on two of the rows.
        """
        count = common_tokens(rows, most)
        if count < LEAST_TOKENS or count * len(rows) < LEAST_SHARE * sum(len(row) for row in rows):
            return None
        if any(len(row) > limit for limit in _windows(model) for row in rows):
            return None
        if model.shares_prefixes is None:
            model.shares_prefixes = _takes_cache(model) and cls._is_exact(model, rows, count)
        if not model.shares_prefixes:
            return None
        ids = list(rows[0][:count])
        return known if known is not None and known.ids == ids else cls(model, ids)

    @classmethod
    def _is_exact(cls, model: LoadedModel, rows: Sequence[Sequence[int]], count: int) -> bool:
        """Whether two of the rows, the shorter one padded, have the same states both ways."""
        ordered = sorted(rows, key=len)
        some = [list(ordered[0]), list(ordered[-1][: len(ordered[0]) + 4])]
        if len(some[0]) == len(some[1]) and len(some[0]) > count + 1:
            some[0].pop()
        whole, rest = model.make_batch(some), model.make_batch([row[count:] for row in some])
        expected = modules.first(modules.run(model.module, whole.input_ids, whole.whole_mask))[
            :, count:
        ]
        try:
            cache = cls(model, some[0][:count])._for(len(some))
            found = modules.first(
                modules.run(model.module, rest.input_ids, whole.whole_mask, cache=cache)
            )
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            IndexError,
            NotImplementedError,
        ):
            return False  # the cache of this architecture works in another way
        if not isinstance(found, Tensor) or found.shape != expected.shape:
            return False
        real = rest.whole_mask.bool()
        error = (expected - found)[real].abs().max() / expected[real].abs().max()
        return bool(
            error <= _TOLERANCE.get(expected.dtype, _HALF_TOLERANCE)
        )  # not of NaN: the usual way tells where they are

    def run(self, batch: Batch) -> Any:
        """Run the model on a batch of texts without these tokens, padded on the right."""
        return self.model.forward(
            batch.input_ids, batch.whole_mask, self._for(len(batch.input_ids))
        )

    def _for(self, texts: int) -> Any:
        """The cache for so many texts: a copy, because a pass adds its own keys and values."""
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(texts)
        return cache


def _takes_cache(model: LoadedModel) -> bool:
    """Whether the model takes keys and values of earlier tokens, and no token sees later ones."""
    taken = {
        "input_ids",
        "attention_mask",
        "past_key_values",
        "use_cache",
    } <= modules.forward_parameters(model.module)
    return taken and not model.identity.get("bidirectional")


def _windows(model: LoadedModel) -> list[int]:
    """How many tokens back attention reaches, where that is limited; longer texts are run whole."""
    config = getattr(model.module, "config", None)
    return [size for name in _WINDOWS if isinstance(size := getattr(config, name, None), int)]
