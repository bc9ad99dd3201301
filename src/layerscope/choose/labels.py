"""Labeled examples from a file: texts with classes, pairs that belong together or not, or pairs
with a score.

The columns say which: `text,label`; `sentence1,sentence2,label` with two labels;
`sentence1,sentence2,score`. Other columns are ignored. Examples are put into an order that depends
on their content alone, so that the order of the rows changes nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerscope.data.readers import read_rows
from layerscope.data.records import as_label, is_missing
from layerscope.errors import DataError, clean_names

__all__ = ["read_labels"]

Kind = Literal["classification", "pairs", "scores"]
Example = tuple[tuple[str, ...], str | int | float]

LEAST = 16
FEW = 32
MOST = 1024
_PAIR_LABELS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1, "0.0": 0, "1.0": 1}
_ROLES = {
    **dict.fromkeys(("text", "sentence", "content"), "text"),
    **dict.fromkeys(("sentence1", "text1", "sent1"), "first"),
    **dict.fromkeys(("sentence2", "text2", "sent2"), "second"),
    **dict.fromkeys(("label", "labels", "class", "category"), "label"),
    **dict.fromkeys(("score", "similarity"), "score"),
}


@dataclass(frozen=True)
class Labeled:
    """Examples in canonical order.

    `sides` is one list of texts, or the two of pairs; `targets` class numbers, 0/1 or scores.
    """

    kind: Kind
    sides: tuple[tuple[str, ...], ...]
    targets: np.ndarray
    classes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def texts(self) -> list[str]:
        """Every distinct text once: what is encoded, and what centering averages over."""
        return list(dict.fromkeys(text for side in self.sides for text in side))

    @property
    def groups(self) -> np.ndarray | None:
        """The class of each example, whose sizes resampling keeps; None for scores."""
        return None if self.kind == "scores" else self.targets

    @property
    def fingerprint(self) -> str:
        """The hash of the examples."""
        content = repr((self.kind, self.sides, self.targets.tolist(), self.classes))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def read_labels(path: str | Path) -> Labeled:
    """Read a `.csv`, `.tsv` or `.jsonl` file (each also `.gz`) of labeled examples."""
    file = Path(path)
    columns, rows = read_rows(file)
    column_of = {_ROLES.get(name.strip().lower(), ""): name for name in reversed(columns)}
    kind = _kind_of(set(column_of), columns, file)
    sides = ("text",) if kind == "classification" else ("first", "second")
    target = "score" if kind == "scores" else "label"
    examples: list[Example] = []
    dropped = Counter[str]()
    for number, row in rows:
        cells = [row.get(column_of[side]) for side in sides]
        texts = tuple("" if cell is None else str(cell).strip() for cell in cells)
        value = row.get(column_of[target])
        if not all(texts):
            dropped["empty text"] += 1
        elif is_missing(value):
            dropped[f"no {target}"] += 1
        else:
            examples.append((texts, _parse_target(value, kind, f"{file}, row {number}")))
    return build(kind, examples, dropped, str(file))


def _kind_of(roles: set[str], columns: Sequence[str], file: Path) -> Kind:
    """Return the kind of labels that columns with these roles hold."""
    has_pairs = {"first", "second"} <= roles
    if has_pairs and len(roles & {"label", "score"}) == 1:
        return "scores" if "score" in roles else "pairs"
    if {"text", "label"} <= roles and not has_pairs:
        return "classification"
    raise DataError(
        f"{file} has the columns {', '.join(map(repr, columns)) or 'none'}, which is not a known "
        "layout. Valid: text,label (classes); sentence1,sentence2,label (0 or 1); "
        "sentence1,sentence2,score (a number)."
    )


def _parse_target(value: Any, kind: Kind, place: str) -> str | int | float:
    text = as_label(value, place).strip()
    if kind == "classification":
        return text
    if kind == "pairs":
        if text.lower() not in _PAIR_LABELS:
            raise DataError(
                f"{place}: a pair's label is 0 or 1 (or no/yes, false/true), not {text!r}. A "
                "degree goes into a column `score`."
            )
        return _PAIR_LABELS[text.lower()]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{place}: a score is a finite number, not {text!r}.")
    return number


def build(
    kind: Kind,
    examples: Sequence[Example],
    dropped: Counter[str] | None = None,
    source: str = "the examples",
) -> Labeled:
    """Check examples (texts, target), and return each once, in canonical order."""
    counts = Counter[str](dropped)
    usable = _merge(kind, examples, counts)
    warnings = [
        f"{count} rows of {source} were left out or merged: {reason}."
        for reason, count in sorted(counts.items())
    ]
    if len(usable) < LEAST:
        raise DataError(
            f"{source} holds {len(usable)} usable examples; at least {LEAST} are needed, 64 are "
            f"better. {' '.join(warnings)}".rstrip()
        )
    if len(usable) < FEW:
        warnings.append(f"{len(usable)} examples are few: {FEW} or more tell layers apart better.")
    if len(usable) > MOST:
        warnings.append(
            f"{source} holds {len(usable)} examples; {MOST} of them, drawn at random, are used."
        )
        usable = usable[:MOST]
    values = [value for _, value in usable]
    sides = tuple(zip(*(texts for texts, _ in usable), strict=True))
    if kind == "scores":
        scores = np.array(values, dtype=np.float64)
        if np.ptp(scores) == 0:
            raise DataError(f"all scores of {source} are the same: there is nothing to rank.")
        return Labeled("scores", sides, scores, (), tuple(warnings))
    classes, targets = np.unique([str(value) for value in values], return_inverse=True)
    single = int((np.bincount(targets) == 1).sum())
    if len(classes) - single < 2:
        raise DataError(
            f"{source} has {len(classes)} different labels, {single} of them on one example only: "
            "give at least two classes with two or more examples each (is `label` the column that "
            "you mean?)."
        )
    if single:
        warnings.append(
            f"{single} of {len(classes)} classes have one example only; no probe can classify it."
        )
    return Labeled(kind, sides, targets, clean_names(classes.tolist()), tuple(warnings))


def _merge(kind: Kind, examples: Sequence[Example], counts: Counter[str]) -> list[Example]:
    """Return each example once, ordered by a hash of its texts, and count what was left out."""
    values_by_text: dict[tuple[str, ...], list[Any]] = {}
    for texts, value in examples:
        values_by_text.setdefault(texts, []).append(value)
    merged: list[Example] = []
    for texts, values in values_by_text.items():
        if kind != "scores" and len(set(values)) > 1:
            counts["contradicting label"] += len(values)
            continue
        merged.append((texts, sum(values) / len(values) if kind == "scores" else values[0]))
        if len(values) > 1:
            counts["duplicate"] += len(values) - 1

    def digest(example: Example) -> bytes:
        return hashlib.sha256("\0".join(example[0]).encode("utf-8", "surrogatepass")).digest()

    return sorted(merged, key=digest)
