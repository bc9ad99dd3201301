"""From contributions of examples to what can be said of each candidate: its score, how sure that is, and what choosing is worth.

With hundreds of candidates on a few dozen examples the best one owes part of its score to chance. What a choice is worth is
therefore judged by examples that had no part in it: in every round a third of the examples is set aside, the choice is made anew
with the others, and its gain is measured on those set aside. Where a probe is trained, it is trained without them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from layerscope.core.statistics import bootstrap_weights
from layerscope.selection.labels.evidence import Evidence
from layerscope.selection.labels.smooth import WIDTH, smooth_layers

DRAWS = 300

Place = tuple[int, int]
Picker = Callable[[np.ndarray], Place]
"""From values (readouts, layers) to the place of the choice."""


@dataclass(frozen=True)
class Weighed:
    """Scores of all candidates (readouts, layers) on all examples, and on every bootstrap draw (readouts, layers, draws).

    `value` is what the choice follows: the score, smoothed over layers.
    """

    score: np.ndarray
    drawn_score: np.ndarray
    value: np.ndarray
    drawn_value: np.ndarray


def weigh(evidence: Evidence, draws: int = DRAWS, seed: int = 0) -> Weighed:
    """Score every candidate on all examples and on resamples of them."""
    count = evidence.judged.shape[-1]
    every = np.concatenate([np.ones((1, count)), bootstrap_weights(count, draws, [seed, count, draws], evidence.groups)])
    scores = _score(evidence, evidence.judged, every)
    values = smooth(scores)
    return Weighed(scores[..., 0], scores[..., 1:], values[..., 0], values[..., 1:])


def smooth(scores: np.ndarray) -> np.ndarray:
    """Scores (readouts, layers, draws) averaged over neighbouring layers; less far where there are fewer layers."""
    return smooth_layers(scores, WIDTH * (scores.shape[1] - 1) / 30)


@dataclass(frozen=True)
class Gains:
    """Per round, what a choice made without some examples gains on them: over the reference, its own last layer, and chance."""

    over_reference: np.ndarray
    over_last: np.ndarray
    over_chance: np.ndarray


def gains_in_rounds(evidence: Evidence, pick: Picker) -> Gains:
    """Choose anew in every round, and measure on the examples that it sets aside."""
    measure, tested = evidence.measure, evidence.measure.tested
    values = _without_tested(evidence)
    chance = measure.chance(tested.astype(np.float64))
    rows = []
    for i, test in enumerate(tested):
        chosen = pick(values[..., i])
        judged = evidence.judged if evidence.rounds is None else np.where(test, evidence.rounds[i], 0.0)
        places = np.stack([judged[chosen], judged[evidence.reference], judged[chosen[0], -1]])
        with np.errstate(invalid="ignore", divide="ignore"):
            mine, reference, own = measure.score(places, test[None].astype(np.float64))[:, 0]
        rows.append((mine - reference, mine - own, mine - chance[i]))
    return Gains(*np.array(rows).T)


def _without_tested(evidence: Evidence) -> np.ndarray:
    """Values (readouts, layers, rounds) from the examples that a round does not test."""
    rest = (~evidence.measure.tested).astype(np.float64)
    if evidence.rounds is None:
        return smooth(_score(evidence, evidence.judged, rest))
    each = [
        _score(evidence, np.where(weights > 0, held, 0.0), weights[None])
        for held, weights in zip(evidence.rounds, rest, strict=True)
    ]
    return smooth(np.concatenate(each, axis=-1))


def _score(evidence: Evidence, items: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(readouts, layers, draws) from (readouts, layers, n) and (draws, n)."""
    flat = items.reshape(-1, items.shape[-1])
    found = evidence.measure.score(flat, weights).reshape(*items.shape[:2], len(weights))
    return np.where(evidence.defined[..., None], found, np.nan)
