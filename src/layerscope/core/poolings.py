"""The poolings: every way in which the states of a text's tokens become one vector.

This file is all there is to a pooling. What is captured, stored, named, offered and exported
follows from its definition; another package adds one through the entry point `layerscope.poolings`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from layerscope.core.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["POOLINGS"]

SINK = "sink"
"""Kept like a pooling, without being one: the state of the token with the largest norm."""


@dataclass(frozen=True)
class Pooling:
    """One vector from the states of a text's tokens: one token's state, a weighted mean, or any
    function of them.

    Exactly one of `position`, `weight` and `pool` is given. `weight` gives the weight of a token
    from its place in the text, counted from 1 (an array or tensor of places in, their weights or
    one number out). `pool` takes states (B, T, D) and a mask (B, T) of the tokens to read, and
    returns (B, D); what is masked out may hold anything. `summary` is a few words for the
    documentation. `sentence_transformers` and `llama_cpp` are what the pooling is called there;
    without such a name it cannot be exported there. `tried` says whether `improve` offers it, if it
    can be exported.
    """

    name: str
    summary: str = ""
    position: Literal["first", "last"] | None = None
    weight: Callable[[Any], Any] | None = None
    pool: Callable[[Tensor, Tensor], Tensor] | None = None
    sentence_transformers: str | None = None
    llama_cpp: str | None = None
    tried: bool = True

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name == SINK:
            raise ValueError(
                f"{self.name!r} cannot name a pooling: use letters, digits and _, and not {SINK!r}."
            )
        if sum(way is not None for way in (self.position, self.weight, self.pool)) != 1:
            raise ValueError(
                f"pooling {self.name!r}: give exactly one of position, weight and pool."
            )

    @property
    def needs_cls(self) -> bool:
        """True if it only makes sense for a model whose first token stands for the whole text."""
        return self.position == "first"

    @property
    def kept_without_sink(self) -> tuple[str, ...]:
        """The vectors to store to have it without the sink token; none where there is no such thing.

        A weighted mean follows from the one with the sink and the sink's state. Others are computed
        without it.
        """
        if self.position is not None:
            return ()
        return (self.name, SINK) if self.weight is not None else (f"{self.name}-drop",)


def _is_pooling(thing: Any) -> bool:
    return isinstance(thing, Pooling)


POOLINGS: Registry[Pooling] = Registry(
    "pooling", "layerscope.poolings", name=lambda pooling: pooling.name, check=_is_pooling
)

for _pooling in (
    Pooling(
        "mean", weight=lambda place: 1.0, sentence_transformers="mean_tokens", llama_cpp="MEAN"
    ),
    Pooling(
        "wmean",
        "later tokens weigh more",
        weight=lambda place: place,
        sentence_transformers="weightedmean_tokens",
    ),
    Pooling("last", position="last", sentence_transformers="lasttoken", llama_cpp="LAST"),
    Pooling(
        "cls", "encoders", position="first", sentence_transformers="cls_token", llama_cpp="CLS"
    ),
    Pooling(
        "max",
        pool=lambda states, span: states.masked_fill(~span.unsqueeze(-1), -math.inf).amax(1),
        sentence_transformers="max_tokens",
        tried=False,
    ),
):
    POOLINGS.add(_pooling)
