"""The result of one task at one layer under one readout: its scores, the items that they are made
of, and the file that holds both."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from layerscope.core.readout import Readout
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import average_precision, bootstrap_rows, spearman
from layerscope.store import checked

__all__ = ["ItemScores", "ScoreResult", "SplitScore", "write_result"]

_DRAWN_AT_ONCE = 2**18  # items: their ranks take a few dozen bytes each
_LEAST_DRAWS = 16  # fewer at once take longer each
_SCORES = {"spearman": spearman, "ap": average_precision}

Rule = Literal["mean", "spearman", "ap"]
"""How items make a score: a mean of per-item values, Spearman's ρ against a gold value, average
precision of a ranking."""


@dataclass(frozen=True)
class ItemScores:
    """Per-item contributions (n,) and, where the rule needs one, the gold value of each item."""

    rule: Rule
    values: np.ndarray
    gold: np.ndarray | None = None

    def score(self, rows: np.ndarray | slice = slice(None)) -> float:
        """Return the score of some items, drawn with repetition."""
        values = self.values[rows]
        if self.gold is None:
            return float(values.mean())
        return float(_SCORES[self.rule](values, self.gold[rows]))


def resampled(items: Sequence[ItemScores], seed: int = 0, draws: int = DRAWS) -> np.ndarray:
    """Return scores (len(items), draws) on the same resamples of items: of every layer, or of every
    candidate of a task."""
    reference = items[0]
    values = np.stack([item.values for item in items])
    count = len(reference.values)
    rows = bootstrap_rows(count, draws, [seed, count])

    def scores_on(draws_rows: np.ndarray) -> np.ndarray:
        counts = [np.bincount(row, minlength=count) for row in draws_rows]
        weights = np.stack(counts).astype(np.float64)
        if reference.gold is None:
            return values @ weights.T / count
        return _SCORES[reference.rule](values, reference.gold, weights)

    size = max(1, min(draws // _LEAST_DRAWS, rows.size // _DRAWN_AT_ONCE))
    # small parts: Ctrl-C waits for no more than these
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return np.concatenate(list(threads.map(scores_on, np.array_split(rows, size))), axis=1)


def same_items(items: Sequence[ItemScores]) -> bool:
    """Return True if layers were scored on the same items, so that they can be paired."""
    reference = items[0]
    return all(
        item.rule == reference.rule
        and len(item.values) == len(reference.values)
        and np.array_equal(item.gold, reference.gold)  # type: ignore[arg-type]
        for item in items
    )


def score_candidates(
    scores: Sequence[float], items: Sequence[ItemScores | None], seed: int = 0
) -> Scores:
    """Return scores of layers on one task with their resamples, for those whose items are known and
    the same."""
    score = np.asarray(scores, dtype=np.float64)
    items_at = {
        i: item for i, item in enumerate(items) if item is not None and np.isfinite(score[i])
    }
    if not items_at or not same_items(list(items_at.values())):
        return Scores(score)
    draws = np.full((len(score), DRAWS), np.nan)
    draws[list(items_at)] = resampled(list(items_at.values()), seed)
    return Scores(score, draws)


@dataclass(frozen=True)
class SplitScore:
    """The main score of one split and subset; None where it is undefined."""

    split: str
    subset: str
    score: float | None = None


@dataclass(frozen=True)
class ScoreResult:
    """The scores of one task at one layer under one readout.

    `scoring` names the code that computed them, and `mteb_reason` says why a device left them to
    mteb. `converged` is the share of classifiers whose fit converged, where a device fits them.
    """

    task: str
    readout: Readout
    site: str
    layer: int
    status: Literal["scored", "undefined", "failed"]
    reason: str = ""
    task_type: str = ""
    metric: str = ""
    scores: tuple[SplitScore, ...] = ()
    scoring: str = "mteb"
    mteb_reason: str = ""
    converged: float | None = None
    seconds: float = 0.0


def write_result(
    file: Path, result: ScoreResult, items: Mapping[tuple[str, str], ItemScores]
) -> None:
    """Write a result with the per-item contributions to its scores, by split and subset; the file
    is whole or absent."""
    arrays = {}
    facts = {"result": json.dumps(asdict(result))}
    for (split, subset), contributions in items.items():
        name = f"{split}/{subset}"
        facts[name] = contributions.rule
        arrays[f"{name}/values"] = contributions.values.astype(np.float32)
        if contributions.gold is not None:
            arrays[f"{name}/gold"] = contributions.gold.astype(np.float32)
    checked.write_arrays(file, arrays, facts)


def read_result(file: Path) -> ScoreResult:
    """Return the result in a file, all of whose content is checked."""
    checked.read_arrays(file)
    fields = json.loads(checked.ArrayFile(file).facts["result"])
    fields["readout"] = Readout(**fields["readout"])
    fields["scores"] = tuple(SplitScore(**score) for score in fields["scores"])
    return ScoreResult(**fields)


def stored_result(file: Path) -> ScoreResult | None:
    """Return the result in a file; None where there is none or a damaged one, which is removed."""
    return checked.read_or_discard(file, read_result)


def read_items(file: Path, split: str, subset: str) -> ItemScores | None:
    """Return the per-item contributions to a score, or None where it is not made of items."""
    stored = checked.ArrayFile(file)
    name = f"{split}/{subset}"
    if name not in stored.facts:
        return None
    columns = [f"{name}/{column}" for column in ("values", "gold")]
    arrays = [stored.read(n).astype(np.float64) for n in columns if n in stored.names]
    return ItemScores(stored.facts[name], *arrays)  # type: ignore[arg-type]
