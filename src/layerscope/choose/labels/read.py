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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from layerscope.data.readers import read_rows
from layerscope.data.records import as_label, is_missing
from layerscope.errors import DataError, clean_names

__all__ = ["read_labels"]

Kind = Literal["classification", "pairs", "scores"]

LEAST = 16
FEW = 32
MOST = 1024
_PAIR_LABELS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1, "0.0": 0, "1.0": 1}
_NAMES = {
    "text": ("text", "sentence", "content"),
    "first": ("sentence1", "text1", "sent1"),
    "second": ("sentence2", "text2", "sent2"),
    "label": ("label", "labels", "class", "category"),
    "score": ("score", "similarity"),
}
LAYOUTS = (
    "text,label (classes); sentence1,sentence2,label (0 or 1); sentence1,sentence2,score (a number)"
)


@dataclass(frozen=True)
class Labeled:
    """Examples in canonical order. `sides` is one list of texts, or the two of pairs; `targets`
    class numbers, 0/1 or scores."""

    kind: Kind
    sides: tuple[tuple[str, ...], ...]
    targets: np.ndarray
    classes: tuple[str, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def texts(self) -> list[str]:
        """Every distinct text once: what is encoded, and what centering averages over."""
        return list(dict.fromkeys(text for side in self.sides for text in side))

    def facts(self) -> dict[str, Any]:
        """For a report."""
        counts = {name: int((self.targets == i).sum()) for i, name in enumerate(self.classes)}
        return {
            "n": len(self),
            "kind": self.kind,
            "classes": counts,
            "texts": len(self.texts),
            "dropped": dict(self.dropped),
        }


def read_labels(path: str | Path) -> Labeled:
    """Read a `.csv`, `.tsv` or `.jsonl` file (each also `.gz`) of labeled examples."""
    file = Path(path)
    columns, rows = read_rows(file)
    named = _find(columns)
    kind = _kind(named, columns, file)
    sides = ("first", "second") if kind != "classification" else ("text",)
    target = "score" if kind == "scores" else "label"
    examples, dropped = [], Counter[str]()
    for number, row in rows:
        texts = tuple(
            "" if (cell := row.get(named[side])) is None else str(cell).strip() for side in sides
        )
        value = row.get(named[target])
        if not all(texts):
            dropped["empty text"] += 1
        elif is_missing(value):
            dropped[f"no {target}"] += 1
        else:
            examples.append((texts, _value(value, kind, f"{file}, row {number}")))
    return build(kind, examples, dropped, str(file))


def build(
    kind: Kind,
    examples: Sequence[tuple[tuple[str, ...], Any]],
    dropped: Counter[str] | None = None,
    where: str = "the examples",
) -> Labeled:
    """Examples (texts, target) checked, each once, in canonical order."""
    counted = Counter[str]() if dropped is None else dropped
    values_by_text: dict[tuple[str, ...], list[Any]] = {}
    for texts, value in examples:
        values_by_text.setdefault(texts, []).append(value)
    usable: list[tuple[tuple[str, ...], Any]] = []
    for texts, values in values_by_text.items():
        if kind != "scores" and len(set(values)) > 1:
            counted["contradicting label"] += len(values)
            continue
        usable.append((texts, sum(values) / len(values) if kind == "scores" else values[0]))
        if len(values) > 1:
            counted["duplicate"] += len(values) - 1
    usable.sort(
        key=lambda example: hashlib.sha256(
            "\0".join(example[0]).encode("utf-8", "surrogatepass")
        ).digest()
    )
    warnings = [
        f"{count} rows of {where} were left out or merged: {why}."
        for why, count in sorted(counted.items())
    ]
    if len(usable) > MOST:
        warnings.append(
            f"{where} holds {len(usable)} examples; {MOST} of them, drawn at random, are used."
        )
        usable = usable[:MOST]
    if len(usable) < LEAST:
        left = (
            f" ({', '.join(f'{count} {why}' for why, count in sorted(counted.items()))} left out)"
            if counted
            else ""
        )
        raise DataError(
            f"{where} holds {len(usable)} usable examples{left}; at least {LEAST} are needed, 64 are better."
        )
    if len(usable) < FEW:
        warnings.append(f"{len(usable)} examples are few: {FEW} or more tell layers apart better.")
    values = [value for _, value in usable]
    sides = tuple(zip(*(texts for texts, _ in usable), strict=True))
    if kind == "scores":
        targets = np.array(values, dtype=np.float64)
        if len(np.unique(targets)) < 2:
            raise DataError(
                f"all scores of {where} are the same ({targets[0]:g}): there is nothing to rank."
            )
        return Labeled("scores", sides, targets, (), dict(counted), tuple(warnings))
    classes = tuple(sorted({str(value) for value in values}))
    _check_classes(kind, classes, Counter(str(value) for value in values), warnings, where)
    targets = np.array([classes.index(str(value)) for value in values])
    return Labeled(kind, sides, targets, clean_names(classes), dict(counted), tuple(warnings))


def _check_classes(
    kind: Kind, classes: Sequence[str], counts: Counter[str], warnings: list[str], where: str
) -> None:
    if len(classes) < 2:
        raise DataError(
            f"all examples of {where} have the same label {classes[0]!r}: give examples of at least two classes."
        )
    if kind == "pairs":
        if min(counts.values()) < 2:
            raise DataError(
                f"{where} has one example only of a label ({dict(counts)}): give at least two of each."
            )
        return
    single = [name for name in classes if counts[name] == 1]
    if len(classes) - len(single) < 2:
        raise DataError(
            f"of the {len(classes)} classes of {where}, {len(single)} have one example only, and a probe needs at least two "
            "classes with two or more. Give more examples per class (is `label` the column that you mean?)."
        )
    if single:
        warnings.append(
            f"{len(single)} of {len(classes)} classes have one example only; no probe can classify it."
        )


def _find(columns: Sequence[str]) -> dict[str, str]:
    """Return the columns that are known by name, by their role."""
    by_name = {name.strip().lower(): name for name in reversed(columns)}
    return {
        what: by_name[name]
        for what, names in _NAMES.items()
        for name in reversed(names)
        if name in by_name
    }


def _kind(named: dict[str, str], columns: Sequence[str], file: Path) -> Kind:
    pair = {"first", "second"} <= set(named)
    if pair and {"label", "score"} <= set(named):
        raise DataError(
            f"{file} has both {named['label']!r} and {named['score']!r}: keep the one to be judged by."
        )
    if pair and "score" in named:
        return "scores"
    if pair and "label" in named:
        return "pairs"
    if "text" in named and "label" in named and not pair:
        return "classification"
    listed = ", ".join(repr(name) for name in columns) or "none"
    raise DataError(
        f"{file} has the columns {listed}, which is not a known layout. Valid: {LAYOUTS}."
    )


def _value(value: Any, kind: Kind, where: str) -> Any:
    text = as_label(value, where).strip()
    if kind == "classification":
        return text
    if kind == "pairs":
        if text.lower() not in _PAIR_LABELS:
            raise DataError(
                f"{where}: a pair's label is 0 or 1 (or no/yes, false/true), not {text!r}. A degree goes into a column `score`."
            )
        return _PAIR_LABELS[text.lower()]
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: a score is a finite number, not {text!r}.")
    return number
