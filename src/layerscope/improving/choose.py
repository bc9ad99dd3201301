"""Choosing among judged candidates: the cheapest of those that tie with the best, or today's where the evidence is weak.

The judge chooses the template. Within it a second opinion counts a little: how well texts are recognized by their parts, which
tells layers apart that an encoder cannot. It never decides whether there is a gain at all: that is the judge's to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.errors import LayerscopeError
from layerscope.selection.budget import allowed_blocks
from layerscope.selection.judges.base import Judgment, with_second_opinion

Place = tuple[int, int]

TIE = 0.025
"""Candidates within so many standard errors of the best, compared on the same resampled texts, tie with it."""

SECOND = 0.25
"""What the second opinion counts, next to the judge."""

SCREEN = 200
"""Texts on which all templates are compared; the best of them and the default are then compared on the whole sample."""

KEPT = 1
"""Templates that go on from there, besides the default's."""


@dataclass(frozen=True)
class Decision:
    """Places (readout, layer) of the choice, of the best and of the default; what the judge says of the choice.

    `gain` is the judge's score of the choice minus the default's, with a 95 % interval; `template_gain` and `layer_gain` split
    it: first the readout changes at the default's layer, then the layer. `weak` says why the default was kept, if so.
    """

    chosen: Place
    best: Place
    reference: Place
    tied: np.ndarray
    gain: float
    low: float
    high: float
    template_gain: float
    layer_gain: float
    weak: str = ""


def relative_costs(tokens: Sequence[float], layers: Sequence[int], n_blocks: int) -> np.ndarray:
    """What each candidate costs (readouts, layers) relative to today: tokens read times blocks run.

    `tokens` are the mean tokens per text under each readout, all its passes counted; the first readout is the default.
    """
    blocks = np.maximum(np.asarray(layers, dtype=np.float64), 0.5)  # reading the embeddings alone is not free
    return np.outer(np.asarray(tokens) / tokens[0], blocks / n_blocks)


def decide(
    judgment: Judgment,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    costs: np.ndarray,
    budget: float | None = None,
    *,
    eligible: Sequence[bool] | None = None,
    second: Judgment | None = None,
) -> Decision:
    """Choose. `budget` is the largest share of the blocks to run; `eligible` says which readouts may be chosen."""
    reference = (list(readouts).index(Readout()), len(layers) - 1)
    n_blocks = layers[-1]
    within = np.asarray(layers)[None, :] <= allowed_blocks(budget, n_blocks)
    allowed = judgment.defined & within
    if eligible is not None and (allowed & np.asarray(eligible)[:, None]).any():
        allowed &= np.asarray(eligible)[:, None]
    if not allowed.any():
        raise LayerscopeError("no layer under any readout can be judged: all texts have the same vector everywhere.")
    best, opinion = judgment.best(allowed), judgment
    if second is not None:
        own = np.array([readout.template == readouts[best[0]].template for readout in readouts])
        opinion = with_second_opinion(judgment, second, allowed & own[:, None], SECOND)
        allowed = opinion.defined
        best = opinion.best()
    tied = _tied(opinion, best, allowed)
    chosen = min(zip(*np.nonzero(tied), strict=True), key=lambda place: (costs[place], -opinion.score[place]))
    chosen = (int(chosen[0]), int(chosen[1]))
    gain, drawn = judgment.difference(chosen, reference)
    low, high = (gain, gain) if drawn is None else (float(q) for q in np.quantile(drawn, [0.025, 0.975]))
    middle = judgment.score[chosen[0], reference[1]]
    split = (float(middle - judgment.score[reference]), float(judgment.score[chosen] - middle))
    weak = ""
    if best != reference and within[0, reference[1]] and not low > 0:
        weak = "the texts do not show that it is better than what you have"
    decided = Decision(chosen, best, reference, tied, gain, low, high, *split, weak=weak)
    return keep_default(decided, weak) if weak else decided


def keep_default(decision: Decision, why: str) -> Decision:
    """The same evidence, but the default stays."""
    return Decision(decision.reference, decision.best, decision.reference, decision.tied, 0.0, 0.0, 0.0, 0.0, 0.0, why)


def _tied(judgment: Judgment, best: Place, allowed: np.ndarray) -> np.ndarray:
    tied = np.zeros_like(allowed)
    tied[best] = True
    if judgment.draws is not None:
        behind = judgment.score[best] - judgment.score
        error = (judgment.draws[best] - judgment.draws).std(-1)
        tied |= allowed & (behind <= TIE * error)
    return tied


COLUMNS = ["readout", "layer", "site", "score", "ci_low", "ci_high", "tied", "chosen", "cost"]


def candidate_table(
    readouts: Sequence[Readout], layers: Sequence[int], judgment: Judgment, decision: Decision, costs: np.ndarray
) -> pd.DataFrame:
    """One row per candidate, the best first."""
    low, high = judgment.interval()
    rows = [
        {
            "readout": readout.name,
            "layer": layer,
            "site": site_of(layer),
            "score": float(judgment.score[r, k]),
            "ci_low": float(low[r, k]),
            "ci_high": float(high[r, k]),
            "tied": bool(decision.tied[r, k]),
            "chosen": decision.chosen == (r, k),
            "cost": float(costs[r, k]),
        }
        for r, readout in enumerate(readouts)
        for k, layer in enumerate(layers)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("score", ascending=False, na_position="last", ignore_index=True)
