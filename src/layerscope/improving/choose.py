"""The candidates of `improve`, and the decision as a choice with a table.

The rule by which a candidate is chosen is `decide_by_judge` in `choose/decide.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from layerscope.choose import Candidate, Decision, Scores, layers_of
from layerscope.choose.choice import Choice, Comparison
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL

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
    """Return what each candidate costs (readouts, layers) relative to today: tokens × blocks.

    `tokens` are the mean tokens per text under each readout, all its passes counted; the first
    readout is the default. `more` says of which readouts an export runs a block more, of zeros.
    """
    extra = np.asarray(more or [False] * len(tokens), dtype=np.float64)
    blocks = np.asarray(layers, dtype=np.float64) + extra[:, None]
    share = np.asarray(tokens)[:, None] / tokens[0]
    return share * np.maximum(blocks, 0.5) / n_blocks  # the embeddings alone are not free


def make_candidates(
    readouts: Sequence[Readout],
    layers: Sequence[int],
    costs: np.ndarray,
    suited: Sequence[bool] | None = None,
    usable: np.ndarray | None = None,
) -> list[Candidate]:
    """Return a candidate for every layer under every readout, readout by readout.

    Readouts that are not `suited` to the texts are blocked, unless no other candidate is `usable`.
    """
    suits = np.full(len(readouts), True) if suited is None else np.asarray(suited)
    if usable is not None and not (np.repeat(suits, len(layers)) & usable).any():
        suits = np.full(len(readouts), True)
    candidates: list[Candidate] = []
    for i, readout in enumerate(readouts):
        blocked = "" if suits[i] else "not suited to the texts"
        candidates += layers_of(readout, layers, costs[i], blocked)
    return candidates


def baseline_of(candidates: Sequence[Candidate]) -> int:
    """Return the place of the last layer under the default readout."""
    places = [i for i, candidate in enumerate(candidates) if candidate.readout == Readout()]
    return max(places, key=lambda place: candidates[place].layer)


def as_choice(decision: Decision, candidates: Sequence[Candidate], judgment: Scores) -> Choice:
    """Return a decision with what the judge says of it.

    The judge's score claims nothing in points, so that the choice has no gain. Its `comparison`
    has the gain of the readout (at the default's layer), and then of the layer.
    """
    chosen, values = candidates[decision.chosen], judgment.values
    baseline = baseline_of(candidates)
    last = candidates[baseline].layer
    middle = next(
        i
        for i, candidate in enumerate(candidates)
        if candidate.readout == chosen.readout and candidate.layer == last
    )
    comparison = Comparison(
        interval=(decision.claim.gain.low, decision.claim.gain.high),
        readout_gain=float(values[middle] - values[baseline]),
        layer_gain=float(values[decision.chosen] - values[middle]),
        relative_cost=chosen.cost,
        candidates=int(judgment.defined.sum()),
        near=int(decision.near.sum()),
        tied=int(decision.tied.sum()),
        kept_default=decision.chosen == baseline,
        cheaper=_cheapest_tied(decision, candidates),
    )
    return Choice(
        chosen.layer,
        chosen.readout_name,
        tied=decision.tied_layers,
        rule="improve",
        layers=last,
        reason=decision.weak,
        abstained=bool(decision.weak),
        before=float(values[baseline]),
        after=float(values[decision.chosen]),
        table=_table(decision, candidates, judgment),
        comparison=comparison,
    )


def _cheapest_tied(
    decision: Decision, candidates: Sequence[Candidate]
) -> tuple[str, int, float] | None:
    """Return the cheapest candidate that cannot be told from the best, where it saves a tenth."""
    costs = [candidates[i].cost if decision.tied[i] else np.inf for i in range(len(candidates))]
    cheapest = candidates[int(np.argmin(costs))]
    if cheapest.cost > 0.9 * candidates[decision.chosen].cost:
        return None
    return cheapest.readout_name, cheapest.layer, cheapest.cost


def front(table: pd.DataFrame) -> pd.DataFrame:
    """Return the candidates that none beats at the same cost or less, the cheapest first.

    Only those that may be chosen are compared.
    """
    table = table[table["eligible"].astype(bool)]
    ordered = table.dropna(subset=["score"]).sort_values(["cost", "score"], ascending=[True, False])
    return ordered[
        ordered["score"] > ordered["score"].shift().cummax().fillna(-np.inf)
    ].reset_index(drop=True)


COLUMNS = ["readout", "layer", "site", "score", *INTERVAL, "tied", "chosen", "cost", "eligible"]


def _table(decision: Decision, candidates: Sequence[Candidate], judgment: Scores) -> pd.DataFrame:
    """Return one row per candidate, the best first."""
    low, high = judgment.interval()
    rows = [
        {
            "readout": candidate.readout_name,
            "layer": candidate.layer,
            "site": site_of(candidate.layer),
            "score": judgment.values[i],
            INTERVAL[0]: low[i],
            INTERVAL[1]: high[i],
            "tied": bool(decision.tied[i]),
            "chosen": i == decision.chosen,
            "cost": candidate.cost,
            "eligible": not candidate.blocked,
        }
        for i, candidate in enumerate(candidates)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).sort_values(
        "score", ascending=False, na_position="last", ignore_index=True
    )
