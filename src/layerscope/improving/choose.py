"""Choosing among judged candidates: the cheapest of those practically as good as the best, or
today's where evidence is weak.

The judge chooses the template. Within it a second opinion counts a little: how well texts are
recognized by their parts, which tells layers apart that an encoder cannot. It never decides whether
there is a gain at all: that is the judge's to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.candidates import Place, ScoredCandidates
from layerscope.core.readout import HEAD, Readout
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL, Interval
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.selection.choice import Choice
from layerscope.selection.judges.base import with_second_opinion

CHEAPER_WITHIN = 0.025
"""Of candidates within so many standard errors of the best the cheapest is chosen. This is a
preference, tuned on benchmarks, for what costs less at practically the same score; what cannot be
told from the best is far more (`ScoredCandidates.tied`)."""

SECOND = 0.25
"""What the second opinion counts, next to the judge."""

SCREEN = 200
"""Texts on which all templates are compared; the best of them and the default are then compared on
the whole sample."""

KEPT = 1
"""Templates that go on from there, besides the default's."""


def relative_costs(
    tokens: Sequence[float],
    layers: Sequence[int],
    n_blocks: int,
    more: Sequence[bool] | None = None,
) -> np.ndarray:
    """What each candidate costs (readouts, layers) relative to today: tokens read times blocks run.

    `tokens` are the mean tokens per text under each readout, all its passes counted; the first
    readout is the default. `more` says of which readouts an export runs a block more, of zeros.
    """
    blocks = (
        np.asarray(layers, dtype=np.float64)
        + np.asarray(more or [False] * len(tokens), dtype=np.float64)[:, None]
    )
    return (
        np.asarray(tokens)[:, None] / tokens[0] * np.maximum(blocks, 0.5) / n_blocks
    )  # the embeddings alone are not free


def too_little(budget: float, least: float) -> str:
    """Why nothing can be chosen."""
    return (
        f"nothing costs as little as budget={budget:g} × today's computation: {least:.2f} at least."
    )


def decide(
    judgment: ScoredCandidates, readouts: Sequence[Readout], layers: Sequence[int], costs: np.ndarray,
    budget: float | None = None, *, eligible: Sequence[bool] | None = None, only: np.ndarray | None = None,
    second: ScoredCandidates | None = None,
) -> Choice:  # fmt: skip
    """Choose. `budget` is the largest share of today's computation per text; `eligible` says which
    readouts may be chosen, `only` at which places (readouts, layers).

    The judge's score claims nothing in points, so that the choice has no gain; `extra` says what
    the judge says of it: the 95 % `interval` of its score minus the default's, which holds for
    whichever is chosen, and what the readout (at the default's layer) and then the layer bring.
    """
    reference = (list(readouts).index(Readout()), len(layers) - 1)
    n_blocks, may = (
        layers[-1],
        np.full(len(readouts), True) if eligible is None else np.asarray(eligible),
    )
    within = np.full(costs.shape, True) if budget is None else costs <= budget + 1e-9
    allowed = judgment.defined & within if only is None else judgment.defined & within & only
    if not allowed.any() and judgment.defined.any():
        raise InvalidValueError(too_little(budget or 0, float(costs[judgment.defined].min())))
    if (allowed & may[:, None]).any():
        allowed &= may[:, None]
    else:
        may = np.full(len(readouts), True)  # better any than none
    if not allowed.any():
        raise LayerscopeError(
            "no layer under any readout can be judged: all texts have the same vector everywhere."
        )
    best, opinion = judgment.best(allowed), judgment
    if second is not None:
        own = np.array([_like(readout, readouts[best[0]]) for readout in readouts])
        opinion = with_second_opinion(judgment, second, allowed & own[:, None], SECOND)
        allowed = opinion.defined
        best = opinion.best()
    tied, near = opinion.tied(allowed), _near(opinion, best, allowed)
    chosen = min(
        zip(*np.nonzero(near), strict=True), key=lambda place: (costs[place], -opinion.score[place])
    )
    chosen = (int(chosen[0]), int(chosen[1]))
    gain, weak = judgment.gain_of_pick(chosen, reference, may[:, None] & within), ""
    if only is None and best != reference and within[reference] and not gain.low > 0:
        weak = "the texts do not show that it is better than what you have"
        chosen, gain = reference, Interval(0.0, 0.0, 0.0)  # the default stays
    middle = judgment.score[chosen[0], reference[1]]
    extra = {
        "interval": [gain.low, gain.high],
        "readout_gain": float(middle - judgment.score[reference]),
        "layer_gain": float(judgment.score[chosen] - middle),
        "relative_cost": float(costs[chosen]),
        "candidates": int(judgment.defined.sum()),
        "tied": int(tied.sum()),
        "near": int(near.sum()),
        "kept_default": chosen == reference,
        "best": {"readout": readouts[best[0]].name, "layer": layers[best[1]]},
        "as_good": _cheapest(tied, costs, chosen, readouts, layers),
    }
    return Choice(
        layers[chosen[1]],
        readouts[chosen[0]].name,
        tied=tuple(
            sorted({layers[int(k)] for k in np.flatnonzero(tied[chosen[0]])} | {layers[chosen[1]]})
        ),
        rule="improve",
        layers=n_blocks,
        reason=weak,
        abstained=bool(weak),
        before=float(judgment.score[reference]),
        after=float(judgment.score[chosen]),
        extra=extra,
        table=_table(readouts, layers, judgment, tied, chosen, costs, may),
    )


def _like(one: Readout, other: Readout) -> bool:
    """Whether a second opinion compares two readouts: of one template, and both heads or
    neither."""
    return one.template == other.template and (one.centering == HEAD) == (other.centering == HEAD)


def _cheapest(
    tied: np.ndarray,
    costs: np.ndarray,
    chosen: Place,
    readouts: Sequence[Readout],
    layers: Sequence[int],
) -> Any:
    """The cheapest that cannot be told from the best, where it saves a tenth at least; else
    None."""
    place = min(
        zip(*np.nonzero(tied), strict=True), key=lambda place: float(costs[place]), default=chosen
    )
    if not costs[place] <= 0.9 * costs[chosen]:
        return None
    return {
        "readout": readouts[place[0]].name,
        "layer": layers[place[1]],
        "relative_cost": float(costs[place]),
    }


def front(table: pd.DataFrame) -> pd.DataFrame:
    """The candidates that none beats at the same cost or less, of those that may be chosen, the
    cheapest first."""
    table = table[table["eligible"].astype(bool)]
    ordered = table.dropna(subset=["score"]).sort_values(["cost", "score"], ascending=[True, False])
    return ordered[
        ordered["score"] > ordered["score"].shift().cummax().fillna(-np.inf)
    ].reset_index(drop=True)


def _near(judgment: ScoredCandidates, best: Place, allowed: np.ndarray) -> np.ndarray:
    """Which candidates score practically the same as the best."""
    near = np.zeros_like(allowed)
    near[best] = True
    if judgment.draws is not None:
        behind = judgment.score[best] - judgment.score
        error = (judgment.draws[best] - judgment.draws).std(-1)
        near |= allowed & (behind <= CHEAPER_WITHIN * error)
    return near


COLUMNS = ["readout", "layer", "site", "score", *INTERVAL, "tied", "chosen", "cost", "eligible"]


def _table(
    readouts: Sequence[Readout], layers: Sequence[int], judgment: ScoredCandidates, tied: np.ndarray, chosen: Place,
    costs: np.ndarray, may: np.ndarray,
) -> pd.DataFrame:  # fmt: skip
    """One row per candidate, the best first."""
    ends = judgment.interval()
    rows = [
        {
            "readout": readout.name,
            "layer": layer,
            "site": site_of(layer),
            "score": float(judgment.score[r, k]),
            **{name: float(end[r, k]) for name, end in zip(INTERVAL, ends, strict=True)},
            "tied": bool(tied[r, k]),
            "chosen": chosen == (r, k),
            "cost": float(costs[r, k]),
            "eligible": bool(may[r]),
        }
        for r, readout in enumerate(readouts)
        for k, layer in enumerate(layers)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        "score", ascending=False, na_position="last", ignore_index=True
    )
