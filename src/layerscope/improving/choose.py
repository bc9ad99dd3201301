"""Choosing among judged candidates: the cheapest of those practically as good as the best, or today's where evidence is weak.

The judge chooses the template. Within it a second opinion counts a little: how well texts are recognized by their parts, which
tells layers apart that an encoder cannot. It never decides whether there is a gain at all: that is the judge's to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.core.candidates import Place, ScoredCandidates
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.selection.budget import allowed_blocks
from layerscope.selection.judges.base import with_second_opinion

CHEAPER_WITHIN = 0.025
"""Of candidates within so many standard errors of the best the cheapest is chosen. This is a preference, tuned on benchmarks, for
what costs less at practically the same score; what cannot be told from the best is far more (`ScoredCandidates.tied`)."""

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
    it: first the readout changes at the default's layer, then the layer. `tied` marks what cannot be told from the best, `near`
    what scores practically the same. `weak` says why the default was kept, if so.
    """

    chosen: Place
    best: Place
    reference: Place
    tied: np.ndarray
    near: np.ndarray
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
    judgment: ScoredCandidates,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    costs: np.ndarray,
    budget: float | None = None,
    *,
    eligible: Sequence[bool] | None = None,
    second: ScoredCandidates | None = None,
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
    tied, near = opinion.tied(allowed), _near(opinion, best, allowed)
    chosen = min(zip(*np.nonzero(near), strict=True), key=lambda place: (costs[place], -opinion.score[place]))
    chosen = (int(chosen[0]), int(chosen[1]))
    gain = judgment.gain(chosen, reference)
    middle = judgment.score[chosen[0], reference[1]]
    split = (float(middle - judgment.score[reference]), float(judgment.score[chosen] - middle))
    weak = ""
    if best != reference and within[0, reference[1]] and not gain.low > 0:
        weak = "the texts do not show that it is better than what you have"
    if weak:  # the default stays
        return Decision(reference, best, reference, tied, near, 0.0, 0.0, 0.0, 0.0, 0.0, weak)
    return Decision(chosen, best, reference, tied, near, gain.value, gain.low, gain.high, *split)


def _near(judgment: ScoredCandidates, best: Place, allowed: np.ndarray) -> np.ndarray:
    """Which candidates score practically the same as the best."""
    near = np.zeros_like(allowed)
    near[best] = True
    if judgment.draws is not None:
        behind = judgment.score[best] - judgment.score
        error = (judgment.draws[best] - judgment.draws).std(-1)
        near |= allowed & (behind <= CHEAPER_WITHIN * error)
    return near


COLUMNS = ["readout", "layer", "site", "score", *INTERVAL, "tied", "chosen", "cost"]


def candidate_table(
    readouts: Sequence[Readout], layers: Sequence[int], judgment: ScoredCandidates, decision: Decision, costs: np.ndarray
) -> pd.DataFrame:
    """One row per candidate, the best first."""
    ends = judgment.interval()
    rows = [
        {
            "readout": readout.name,
            "layer": layer,
            "site": site_of(layer),
            "score": float(judgment.score[r, k]),
            **{name: float(end[r, k]) for name, end in zip(INTERVAL, ends, strict=True)},
            "tied": bool(decision.tied[r, k]),
            "chosen": decision.chosen == (r, k),
            "cost": float(costs[r, k]),
        }
        for r, readout in enumerate(readouts)
        for k, layer in enumerate(layers)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("score", ascending=False, na_position="last", ignore_index=True)
