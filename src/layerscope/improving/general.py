"""General texts: short ones of several kinds, from the catalogue, that heads learn from beside the
user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, cast

from layerscope.catalogue import Published
from layerscope.errors import DataError, LayerscopeError
from layerscope.evaluation.tasks.catalogue import TASKS

SOURCES = ("SmsSpam", "TrecQuestions", "SentimentSnippets")
"""Text messages; questions; tweets, reviews and editorials. What `evaluate` scores on is not
taken."""

COUNT = 2000

WEIGHTS = (0.03, 0.1, 0.3, 1.0)
"""What a general text may count in a head, beside one of the user's."""


def general_key() -> dict[str, Any]:
    """What decides which texts these are, by the sha256 of their files, and what they may count;
    nothing is fetched."""
    origins = {name: cast(Published, TASKS.get(name).origin) for name in SOURCES}
    sources = {name: [file.sha256 for file in origin.files] for name, origin in origins.items()}
    return {"texts": COUNT, "sources": sources, "weights": list(WEIGHTS)}


def general_texts(
    without: Iterable[str], count: int | None = None, offline: bool = False
) -> list[str]:
    """At most `count` distinct texts, as many of each source, none of which is among others but for
    case and spaces."""
    try:
        lists = [
            [row["text"] for row in TASKS.get(name).splits(offline=offline)["train"]]
            for name in SOURCES
        ]
    except LayerscopeError as error:
        fetch = f"`layerscope fetch {' '.join(SOURCES)}` gets all that general= needs"
        raise DataError(
            f"general= needs texts of the catalogue: {error} {fetch}; or leave out general=."
        ) from error
    taken = {_plain(text) for text in without}
    found: dict[str, str] = {}
    for text in chain.from_iterable(zip(*lists, strict=False)):
        if _plain(text) not in taken:
            found.setdefault(_plain(text), text)
    return list(found.values())[:count]


def general_names(found: Mapping[str, Any]) -> str:
    """How many general texts there are, and of which corpora."""
    return f"{found['texts']:,} general texts ({', '.join(found['corpora'])})"


def general_words(found: Mapping[str, Any]) -> str:
    """What general texts count in the head that is exported, and what that brings; and in those
    judged, where it differs."""
    gain = f"agreement with the teachers on texts not fitted on {found['before']:.3f} → {found['after']:.3f}"
    told = (
        f"{found['weight']:g} as much as yours each: {gain}, the largest of {len(WEIGHTS)} weights"
    )
    judged = found.get("judged", found["weight"])
    other = "" if judged == found["weight"] else f"; {judged:g} in the heads that were judged"
    return f"{general_names(found)} count {told if found['weight'] else 'nothing: they do not help these'}{other}"


def _plain(text: str) -> str:
    return "".join(text.split()).casefold()
