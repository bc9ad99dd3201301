"""From what the labeled examples say about every layer under every readout to a decision.

With hundreds of candidates and a few dozen examples, the best candidate owes part of its score to
chance. So its gain is measured on examples that took no part in the choice: each round sets a third
of the examples aside, chooses again with the rest, and measures the gain on those set aside. Probes
are trained without them, too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import pandas as pd

from layerscope.core.candidates import DRAWS, Place, ScoredCandidates
from layerscope.core.readout import HEAD, Readout
from layerscope.core.sites import site_of
from layerscope.core.statistics import Interval, bootstrap_weights
from layerscope.errors import LayerscopeError
from layerscope.selection import shallower
from layerscope.selection.choice import NOTHING, Choice
from layerscope.selection.labels.measures import Contributions, LabelMeasure, make_measure
from layerscope.selection.labels.read import Labeled

VectorSource = Callable[[Readout], np.ndarray]
"""From a readout to vectors (layers, texts, D), the texts in the order of `Labeled.texts`."""


@dataclass(frozen=True)
class LabelEvidence:
    """Contributions (readouts, layers, n) of every example; NaN where a layer is undefined under a
    readout.

    `groups` are the examples' classes, where they have any: resampling keeps their sizes. `rounds`
    (rounds, readouts, layers, n) and `accuracy` (readouts, layers) are those of `Contributions`.
    """

    readouts: tuple[Readout, ...]
    layers: tuple[int, ...]
    judged: np.ndarray
    measure: LabelMeasure
    groups: np.ndarray | None = None
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None

    @property
    def defined(self) -> np.ndarray:
        """(readouts, layers): where there is anything to score."""
        return np.isfinite(self.judged).all(-1)

    @property
    def reference(self) -> tuple[int, int]:
        """Where the default readout's last layer is."""
        return self.readouts.index(Readout()) if Readout() in self.readouts else 0, len(
            self.layers
        ) - 1


def gather(
    labeled: Labeled,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    vectors: VectorSource,
    *,
    folds: int = 5,
    seed: int = 0,
    unit: bool = False,
    advance: Callable[[int], None] = lambda n: None,
) -> LabelEvidence:
    """Contributions under every readout; those that a probe cannot tell apart are computed once."""
    measure = make_measure(labeled, folds, seed)
    computed: dict[Readout, Contributions] = {}
    found = {}
    for readout in readouts:
        same = stands_for(readout, labeled, unit)
        if same not in computed:
            computed[same] = measure.items(vectors(same))
        found[readout] = computed[same]
        advance(1)
    return assemble(labeled, measure, found, layers)


def stands_for(readout: Readout, labeled: Labeled, unit: bool) -> Readout:
    """The readout that gives the same scores: a probe does not see centering, unless vectors are
    then scaled to length 1."""
    unseen = labeled.kind == "classification" and not unit and readout.centering != HEAD
    return replace(readout, centering="none") if unseen else readout


def assemble(
    labeled: Labeled,
    measure: LabelMeasure,
    contributions: Mapping[Readout, Contributions],
    layers: Sequence[int],
) -> LabelEvidence:
    """Contributions under several readouts, put together in the readouts' order."""
    every = list(contributions.values())
    rounds = [one.rounds for one in every if one.rounds is not None]
    right = [one.accuracy.mean(-1) for one in every if one.accuracy is not None]
    return LabelEvidence(
        tuple(contributions),
        tuple(layers),
        np.stack([one.judged for one in every]),
        measure,
        None if labeled.kind == "scores" else labeled.targets,
        np.stack(rounds, axis=1) if rounds else None,
        np.stack(right) if right else None,
    )


WIDTH = 0.5
"""Standard deviation of the average over layers, in layers of a 30-block model; less for shallower
ones."""


def smooth_layers(scores: np.ndarray, width: float) -> np.ndarray:
    """A Gaussian average over the layer axis of scores (readouts, layers, draws). What is undefined
    stays so."""
    if width <= 0:
        return scores
    at = np.arange(scores.shape[1])
    kernel = np.exp(-0.5 * ((at[:, None] - at[None, :]) / width) ** 2)
    known = np.isfinite(scores)
    total = np.einsum("kl,rlb->rkb", kernel, np.where(known, scores, 0.0))
    weight = np.einsum("kl,rlb->rkb", kernel, known.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known, total / weight, np.nan)


Picker = Callable[[np.ndarray], Place]
"""From values (readouts, layers) to the place of the choice."""


def score_candidates(
    evidence: LabelEvidence, draws: int = DRAWS, seed: int = 0
) -> ScoredCandidates:
    """Score every candidate on all examples and on resamples of them."""
    count = evidence.judged.shape[-1]
    every = np.concatenate(
        [
            np.ones((1, count)),
            bootstrap_weights(count, draws, [seed, count, draws], evidence.groups),
        ]
    )
    scores = _score(evidence, evidence.judged, every)
    names = [readout.name for readout in evidence.readouts]
    return ScoredCandidates(scores[..., 0], scores[..., 1:], names, evidence.layers, "labels")


def smooth(scored: ScoredCandidates) -> ScoredCandidates:
    """The same scores averaged over neighboring layers, which a choice follows."""
    assert scored.draws is not None
    both = _smooth(np.concatenate([scored.score[..., None], scored.draws], axis=-1))
    return replace(scored, score=both[..., 0], draws=both[..., 1:])


def _smooth(scores: np.ndarray) -> np.ndarray:
    """Scores (readouts, layers, draws) averaged over neighboring layers; over fewer of them in
    models with few layers."""
    return smooth_layers(scores, WIDTH * (scores.shape[1] - 1) / 30)


@dataclass(frozen=True)
class Gains:
    """Per round, what a choice made without some examples gains on them: over the reference, its
    own last layer, and chance."""

    over_reference: np.ndarray
    over_last: np.ndarray
    over_chance: np.ndarray


def gains_in_rounds(evidence: LabelEvidence, pick: Picker) -> Gains:
    """Choose anew in every round, and measure on the examples that it sets aside."""
    measure, tested = evidence.measure, evidence.measure.tested
    values = _without_tested(evidence)
    chance = measure.chance(tested.astype(np.float64))
    rows = []
    for i, test in enumerate(tested):
        chosen = pick(values[..., i])
        judged = (
            evidence.judged if evidence.rounds is None else np.where(test, evidence.rounds[i], 0.0)
        )
        places = np.stack([judged[chosen], judged[evidence.reference], judged[chosen[0], -1]])
        with np.errstate(invalid="ignore", divide="ignore"):
            mine, reference, own = measure.score(places, test[None].astype(np.float64))[:, 0]
        rows.append((mine - reference, mine - own, mine - chance[i]))
    return Gains(*np.array(rows).T)


def _without_tested(evidence: LabelEvidence) -> np.ndarray:
    """Values (readouts, layers, rounds) from the examples that a round does not test."""
    rest = (~evidence.measure.tested).astype(np.float64)
    if evidence.rounds is None:
        return _smooth(_score(evidence, evidence.judged, rest))
    each = [
        _score(evidence, np.where(weights > 0, scores, 0.0), weights[None])
        for scores, weights in zip(evidence.rounds, rest, strict=True)
    ]
    return _smooth(np.concatenate(each, axis=-1))


def _score(evidence: LabelEvidence, items: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(readouts, layers, draws) from (readouts, layers, n) and (draws, n)."""
    flat = items.reshape(-1, items.shape[-1])
    scores = evidence.measure.score(flat, weights).reshape(*items.shape[:2], len(weights))
    return np.where(evidence.defined[..., None], scores, np.nan)


RISK = 0.5
"""A choice that more likely loses against the reference than gains, by examples that had no part in
it, is not made."""

CHANCE = 0.05
"""Nor is one made where the chosen may well do no better than chance: labels that the vectors know
nothing of choose nothing."""

_WEAK = {
    "loss": "examples that had no part in choosing it do not bear that out",
    "chance": "on examples that had no part in choosing it, it may do no better than chance",
}


def decide(
    evidence: LabelEvidence,
    scored: ScoredCandidates,
    max_blocks: float | None = None,
    tolerance: float | None = None,
) -> Choice:
    """Choose. `max_blocks` is the largest share of the blocks to run; `tolerance` (points) takes
    the earliest within it.

    The gain is judged by examples that had no part in the choice. `extra` has the places (readout,
    layer) of the choice and of the best as `at` and `best`, the best's gain and risk as `judged`,
    and why it was not chosen, if so, as `weak`.
    """
    shallower.check(max_blocks, tolerance)
    if max_blocks is not None and tolerance is None:
        tolerance = shallower.TOLERANCE
    allowed = _allowed(evidence, max_blocks)
    reference, smoothed, drawn = evidence.reference, smooth(scored), scored.draws
    assert drawn is not None
    pick = partial(_pick, allowed=allowed, tolerance=None if tolerance is None else tolerance / 100)
    at = best = pick(smoothed.score)
    gains = gains_in_rounds(evidence, pick)
    gain, same = _mean(gains.over_reference), _mean(gains.over_last)
    draws = gain + _centered(drawn[best] - drawn[reference])
    above = _mean(gains.over_chance) + _centered(drawn[best])
    risk, guessing = _share_below(draws), _share_below(above)
    tied = smoothed.tied(allowed)
    weak = "chance" if guessing > CHANCE else "loss" if risk >= RISK or gain <= 0 else ""
    if best == reference or not allowed[reference]:
        weak = ""  # nothing is given up, or there is no reference
    judged, parts = (100 * gain, risk), [NOTHING] * 3
    if best == reference or weak:
        at, risk = reference, 0.0
    else:
        parts = [
            part.scaled(100)
            for part in (_interval(gain, draws), *_parts(scored, best, reference, gain, same))
        ]
    layers = evidence.layers
    return Choice(
        layers[at[1]],
        evidence.readouts[at[0]].name,
        gain=parts[0],
        gain_readout=parts[1],
        gain_layer=parts[2],
        risk_of_loss=risk,
        tied=tuple(sorted({layers[k] for k in np.flatnonzero(tied[at[0]])} | {layers[at[1]]})),
        rule="labels",
        abstained=bool(weak),
        reason=_reason(evidence, best, at, weak, int(tied.sum()) - 1),
        table=score_rows(evidence, scored, smoothed, tied),
        extra={
            "at": at,
            "best": best,
            "weak": weak,
            "judged": judged,
            "candidates": int(evidence.defined.sum()),
            "tied_candidates": int(tied.sum()),
        },
    )


def _reason(evidence: LabelEvidence, best: Place, at: Place, weak: str, others: int) -> str:
    compared = (
        f"{int(evidence.defined.sum())} layers and readouts on {evidence.judged.shape[-1]} examples"
    )
    if weak:
        name, layer = evidence.readouts[best[0]].name, evidence.layers[best[1]]
        return (
            f"Of {compared}, layer {layer} under {name} looks best, but {_WEAK[weak]}: the evidence is weak, and the "
            "last layer under the default readout stays."
        )
    if at == evidence.reference:
        return f"Of {compared}, the last layer under the default readout is best."
    ties = f" {others} others cannot be told from the best." if others else ""
    return f"Best of {compared}; the gain is measured on examples that had no part in the choice.{ties}"


def score_rows(
    evidence: LabelEvidence, scored: ScoredCandidates, smoothed: ScoredCandidates, tied: np.ndarray
) -> pd.DataFrame:
    """One row per readout and layer, the best first, in points."""
    reference = evidence.reference
    assert scored.draws is not None
    numbers = {
        "score": scored.score,
        "se": _spread(scored.draws),
        "gain": scored.score - scored.score[reference],
        "gain_se": _spread(scored.draws - scored.draws[reference]),
        "smoothed": smoothed.score,
    }
    if evidence.accuracy is not None:
        numbers["accuracy"] = evidence.accuracy
    rows = [
        {
            "layer": layer,
            "site": site_of(layer),
            "readout": readout.name,
            **asdict(readout),
            **{name: 100 * float(values[r, k]) for name, values in numbers.items()},
            "tied": bool(tied[r, k]),
        }
        for r, readout in enumerate(evidence.readouts)
        for k, layer in enumerate(evidence.layers)
    ]
    return pd.DataFrame(rows).sort_values(
        "smoothed", ascending=False, na_position="last", ignore_index=True, kind="stable"
    )


def _spread(draws: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a candidate that is undefined has no error either
        return np.nanstd(draws, axis=-1)


def _parts(
    scored: ScoredCandidates, best: Place, reference: Place, gain: float, same: float
) -> tuple[Interval, Interval]:
    """What the readout and what the layer gain; all of it is the layer's under the default readout,
    the readout's at the last."""
    last = (best[0], scored.score.shape[1] - 1)
    by_layer = gain if best[0] == reference[0] else 0.0 if best == last else same
    drawn = scored.draws
    assert drawn is not None
    return (
        NOTHING
        if last == reference
        else _interval(gain - by_layer, drawn[last] - drawn[reference]),
        NOTHING if best == last else _interval(by_layer, drawn[best] - drawn[last]),
    )


def _interval(value: float, draws: np.ndarray) -> Interval:
    low, high = np.nanquantile(value + _centered(draws), [0.025, 0.975])
    return Interval(value, float(low), float(high))


def _centered(draws: np.ndarray) -> np.ndarray:
    return draws - np.nanmean(draws)


def _share_below(draws: np.ndarray) -> float:
    """The share of draws below zero; half of those at zero."""
    known = draws[np.isfinite(draws)]
    return float(((known < 0) + 0.5 * (known == 0)).mean())


def _allowed(evidence: LabelEvidence, max_blocks: float | None) -> np.ndarray:
    allowed = evidence.defined.copy()
    allowed &= np.array(evidence.layers)[None, :] <= shallower.allowed_blocks(
        max_blocks, evidence.layers[-1]
    )
    if not allowed.any():
        raise LayerscopeError(
            f"no layer and readout is left to choose from (max_blocks={max_blocks}, layers {list(evidence.layers)})."
        )
    return allowed


def _pick(value: np.ndarray, allowed: np.ndarray, tolerance: float | None) -> tuple[int, int]:
    """The largest value; with a tolerance, the earliest layer within it and the best readout
    there."""
    values = np.where(allowed & np.isfinite(value), value, -np.inf)
    if tolerance:
        first = int(np.flatnonzero((values >= values.max() - tolerance - 1e-12).any(0))[0])
        return int(values[:, first].argmax()), first
    readout, layer = np.unravel_index(int(values.argmax()), values.shape)
    return int(readout), int(layer)


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
