"""General texts: short ones of several kinds, from the catalogue, that heads learn from beside the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from layerscope.errors import DataError, LayerscopeError
from layerscope.evaluation.tasks.catalogue import TASKS

SOURCES = ("SmsSpam", "TrecQuestions", "SentimentSnippets")
"""Text messages; questions; tweets, reviews and editorials. What `evaluate` scores on is not taken."""

COUNT = 2000


def general_texts(without: Iterable[str], count: int | None = None, offline: bool = False) -> list[str]:
    """At most `count` distinct texts, as many of each source, none of which is among others but for case and spaces."""
    try:
        lists = [[row["text"] for row in TASKS.get(name).splits(offline=offline)["train"]] for name in SOURCES]
    except LayerscopeError as error:
        fetch = f"`layerscope fetch {' '.join(SOURCES)}` gets all that general= needs"
        raise DataError(f"general= needs texts of the catalogue: {error} {fetch}; or leave out general=.") from error
    taken = {_plain(text) for text in without}
    found: dict[str, str] = {}
    for text in chain.from_iterable(zip(*lists, strict=False)):
        if _plain(text) not in taken:
            found.setdefault(_plain(text), text)
    return list(found.values())[:count]


def general_words(found: Mapping[str, Any]) -> str:
    """What general texts count in a head, and what that brings."""
    told = f"{found['texts']:,} general texts ({', '.join(found['corpora'])}) count "
    if not found["weight"]:
        return f"{told}nothing: they do not help these"
    gain = f"agreement with the teachers on texts not fitted on {found['before']:.3f} → {found['after']:.3f}"
    return f"{told}{found['weight']:g} as much as yours each: {gain}"


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
