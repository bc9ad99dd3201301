"""The templates: what can be put around a text before a model reads it.

This file is all there is to a template; another package adds one through the entry point
`layerscope.templates`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from layerscope.core.plugins import Registry
from layerscope.core.poolings import POOLINGS

__all__ = ["SLOT", "get_template"]

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
    "The essence of a sentence is often captured by its main subjects and actions, while descriptive terms provide "
    "additional but less central details. With this in mind, t"
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
    Template("answer", 'The answer to this question: "{text}' + _ONE_WORD.split(SLOT)[1], ("last",), "after Jiang et al. 2023",
             searched=True, queries=True),
    Template("echo", "Rewrite the sentence: {text}\nThe rewritten sentence: {text}", citation="Springer et al. 2024",
             in_all=True),
    Template("one-word", _ONE_WORD, ("last",), "Jiang et al. 2023", in_all=True, tried=True, with_labels=True, searched=True),
    *(
        Template(name, pattern, ("last",), citation, tried=name == "step-by-step", with_labels=True)
        for name, pattern, citation in (
            ("step-by-step", "After thinking step by step, t" + _ONE_WORD[1:], "Zhang et al. 2024"),
            ("topic", 'This text: "{text}" is about one topic, in one word: "', "after Lei et al. 2024"),
            ("intent", 'This text: "{text}" What its author wants, in one word: "', "after Lei et al. 2024"),
            ("feeling", 'This text: "{text}" The feeling in it, in one word: "', "after Lei et al. 2024"),
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
