"""Choosing: the best candidate that is allowed, unless the examples do not show that it beats the reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from layerscope.errors import LayerscopeError
from layerscope.selection import budget as budgets
from layerscope.selection.labels.evidence import Evidence
from layerscope.selection.labels.weigh import Weighed, gains_in_rounds

RISK = 0.5
"""A choice that more likely loses against the reference than gains, by examples that had no part in it, is not made."""

CHANCE = 0.05
"""Nor is one made where the chosen may well do no better than chance: labels that the vectors know nothing of choose nothing."""

Weak = Literal["", "loss", "chance"]


@dataclass(frozen=True)
class Decision:
    """Places (readout, layer) of what was chosen and of the best, and what the choice is worth, as scores from 0 to 1.

    `gain` is judged by examples that had no part in the choice. `tied` (readouts, layers) marks what the examples do not tell
    from the best. `weak` says why the best was not chosen, if so; `judged` is its gain and risk all the same.
    """

    chosen: tuple[int, int]
    best: tuple[int, int]
    weak: Weak
    gain: float
    low: float
    high: float
    risk: float
    gain_same_readout: float
    tied: np.ndarray
    judged: tuple[float, float] = (0.0, 0.0)

    @property
    def abstained(self) -> bool:
        """Whether the reference stays for want of evidence."""
        return bool(self.weak)


def decide(evidence: Evidence, weighed: Weighed, budget: float | None = None, tolerance: float | None = None) -> Decision:
    """Choose. `budget` is the largest share of the blocks to run; `tolerance` (a score) takes the earliest so near."""
    budgets.check(budget, None if tolerance is None else 100 * tolerance)
    if budget is not None and tolerance is None:
        tolerance = budgets.TOLERANCE / 100
    allowed = _allowed(evidence, budget)
    reference = evidence.reference
    pick = partial(_pick, allowed=allowed, tolerance=tolerance)
    best = pick(weighed.value)
    gains = gains_in_rounds(evidence, pick)
    gain, same = _mean(gains.over_reference), _mean(gains.over_last)
    draws = gain + _centred(weighed.drawn_score[best] - weighed.drawn_score[reference])
    above = _mean(gains.over_chance) + _centred(weighed.drawn_score[best])
    risk, guessing = _share_below(draws), _share_below(above)
    tied = tied_with_best(weighed, allowed)
    weak: Weak = "chance" if guessing > CHANCE else "loss" if risk >= RISK or gain <= 0 else ""
    if best == reference or not allowed[reference]:
        weak = ""  # nothing is given up, or the reference is not to be had
    if best == reference or weak:
        return Decision(reference, best, weak, 0.0, 0.0, 0.0, 0.0, 0.0, tied, (gain, risk))
    low, high = np.nanquantile(draws, [0.025, 0.975])
    return Decision(best, best, weak, gain, float(low), float(high), risk, same, tied, (gain, risk))


def _centred(draws: np.ndarray) -> np.ndarray:
    return draws - np.nanmean(draws)


def _share_below(draws: np.ndarray) -> float:
    """The share of draws below zero; half of those at zero."""
    known = draws[np.isfinite(draws)]
    return float(((known < 0) + 0.5 * (known == 0)).mean())


def _allowed(evidence: Evidence, budget: float | None) -> np.ndarray:
    allowed = evidence.defined.copy()
    allowed &= np.array(evidence.layers)[None, :] <= budgets.allowed_blocks(budget, evidence.layers[-1])
    if not allowed.any():
        raise LayerscopeError(f"no layer and readout is left to choose from (budget {budget}, layers {list(evidence.layers)}).")
    return allowed


def _pick(value: np.ndarray, allowed: np.ndarray, tolerance: float | None) -> tuple[int, int]:
    """The largest value; with a tolerance the earliest layer that comes so near, and its best readout."""
    held = np.where(allowed & np.isfinite(value), value, -np.inf)
    if tolerance:
        first = int(np.flatnonzero((held >= held.max() - tolerance - 1e-12).any(0))[0])
        return int(held[:, first].argmax()), first
    readout, layer = np.unravel_index(int(held.argmax()), held.shape)
    return int(readout), int(layer)


def tied_with_best(weighed: Weighed, allowed: np.ndarray, level: float = 0.95) -> np.ndarray:
    """What cannot be told from the best, all candidates compared at once.

    In every draw the scores err by some amount. A candidate is ruled out when it lies further behind the best than, in 95 % of
    the draws, it falls behind whichever candidate errs most in its own favour: the largest error of hundreds, not that of one.
    """
    known = allowed & np.isfinite(weighed.value)
    values, drawn = weighed.value[known], weighed.drawn_value[known]
    errors = drawn - values[:, None]
    usual = np.nanquantile(np.nanmax(errors, axis=0) - errors, level, axis=1)
    tied = np.zeros_like(known)
    tied[known] = values.max() - values <= usual + 1e-12
    return tied


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
