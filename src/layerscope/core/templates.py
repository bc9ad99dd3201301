"""Poolings and templates: how the states of a text's tokens become one vector, and what can be put
around a text before a model reads it.

This file is all there is to them. What is captured, stored, named, offered and exported follows
from their definitions; another package adds one through the entry points `layerscope.poolings` and
`layerscope.templates`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from layerscope.core.plugins import Registry

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["POOLINGS", "SLOT", "get_template"]

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
        """The vectors to store to have it without the sink token; none where that does not exist.

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


# Templates
# ------------------------------------------------------------------------------------------------

SLOT = "{text}"


@dataclass(frozen=True)
class Template:
    """A named pattern with `{text}` in it.

    `plain` reads every token of the text. A template with the text twice (`echo`) reads the second
    copy, which has seen the first; any other template (`one-word`) reads the whole sequence.
    `read_by` names the poolings that make sense for it, where not all do. The rest says who offers
    it: `in_all` the readouts `all` of `evaluate`, `tried` `improve` where it has no labels to tell
    more templates apart, `with_labels` where it has, `searched` where queries find documents; one
    for `queries` is read before these alone.
    """

    name: str
    pattern: str
    read_by: tuple[str, ...] = ()
    citation: str = ""
    in_all: bool = False
    tried: bool = False
    with_labels: bool = False
    searched: bool = False
    queries: bool = False

    @property
    def copies(self) -> int:
        """The number of times that the text appears."""
        return self.pattern.count(SLOT)

    @property
    def poolings(self) -> tuple[str, ...]:
        """The poolings that make sense for it, the default one first; the first token is the text's
        only in plain text."""
        if self.read_by:
            return self.read_by
        return tuple(
            name
            for name, pooling in POOLINGS.all().items()
            if self.pattern == SLOT or not pooling.needs_cls
        )


def _is_template(thing: Any) -> bool:
    return (
        isinstance(thing, Template)
        and thing.copies > 0
        and "/" not in thing.name
        and thing.name not in ("all", "default")
    )


TEMPLATES: Registry[Template] = Registry(
    "template",
    "layerscope.templates",
    name=lambda template: template.name,
    check=_is_template,
    hint="Or a pattern of your own with {text} in it.",
)

_ONE_WORD = 'This sentence: "{text}" means in one word: "'
_KNOWLEDGE = (
    "The essence of a sentence is often captured by its main subjects and actions, while "
    "descriptive terms provide additional but less central details. With this in mind, t"
)
_DEMONSTRATIONS = (
    ("The train to the airport was canceled again.", "Travel"),
    ("Two children are kicking a ball in the park.", "Play"),
    ("How do I change the password of my account?", "Security"),
)


def _demonstrated(count: int) -> str:
    shown = [
        _ONE_WORD.replace(SLOT, text) + f'{word}".\n' for text, word in _DEMONSTRATIONS[:count]
    ]
    return "".join(shown) + _ONE_WORD


# A judge without labels chooses better among the few that are tried than among more: some others
# (topic, intent) please an encoder without serving every task.
BUILT_IN = (
    Template("plain", SLOT, in_all=True, tried=True, searched=True),
    Template("instruct", "Instruct: Given a question, retrieve texts that answer it\nQuery: {text}",
             citation="after Wang et al. 2024", searched=True, queries=True),
    Template("answer", 'The answer to this question: "{text}' + _ONE_WORD.split(SLOT)[1],
             ("last",), "after Jiang et al. 2023", searched=True, queries=True),
    Template("echo", "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
             citation="Springer et al. 2024", in_all=True),
    Template("one-word", _ONE_WORD, ("last",), "Jiang et al. 2023", in_all=True, tried=True,
             with_labels=True, searched=True),
    *(
        Template(name, pattern, ("last",), citation, tried=name == "step-by-step", with_labels=True)
        for name, pattern, citation in (
            ("step-by-step", "After thinking step by step, t" + _ONE_WORD[1:], "Zhang et al. 2024"),
            ("topic", 'This text: "{text}" is about one topic, in one word: "',
             "after Lei et al. 2024"),
            ("intent", 'This text: "{text}" What its author wants, in one word: "',
             "after Lei et al. 2024"),
            ("feeling", 'This text: "{text}" The feeling in it, in one word: "',
             "after Lei et al. 2024"),
            ("one-demonstration", _demonstrated(1), "Jiang et al. 2023"),
            ("knowledge", _KNOWLEDGE + _ONE_WORD[1:], "Zhang et al. 2024"),
            ("three-demonstrations", _demonstrated(3), "Jiang et al. 2023"),
        )
    ),
)  # fmt: skip
for _template in BUILT_IN:
    TEMPLATES.add(_template)


def get_template(name: str) -> Template:
    """Return a template by name, or the user's own pattern if it has `{text}` in it."""
    return Template(name, name) if SLOT in name else TEMPLATES.get(name)


def names_of(offer: str) -> list[str]:
    """Return the templates of one offer: `in_all`, `tried`, `with_labels` or `searched`."""
    return [name for name, template in TEMPLATES.all().items() if getattr(template, offer)]
