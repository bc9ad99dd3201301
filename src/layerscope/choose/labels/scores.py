"""Scores of every layer under every readout on labeled examples, and the decision by them.

With hundreds of candidates and a few dozen examples, the best candidate owes part of its score to
chance. So its gain is measured on examples that took no part in the choice: each round sets a third
of the examples aside, chooses again with the rest, and measures the gain on those set aside. Probes
are trained without them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.choose.candidates import Claim, Limits, layers_of
from layerscope.choose.decide import Decision, Rule, decide
from layerscope.choose.labels.measures import Contributions, LabelMeasure, make_measure
from layerscope.choose.labels.read import Labeled
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import Interval, bootstrap_weights

VectorSource = Callable[[Readout], np.ndarray]
"""From a readout to vectors (layers, texts, D), the texts in the order of `Labeled.texts`."""

WIDTH = 0.5
"""Standard deviation of the average over layers, in layers of a 30-block model; less for shallower
ones."""

RISK = 0.5
"""A choice that more likely loses against the baseline than gains, by examples that had no part in
it, is not made."""

CHANCE = 0.05
"""Nor is one made where the chosen may well do no better than chance: labels that the vectors know
nothing of choose nothing."""

LABELS_SHARE = 2.0
"""The weight of labels next to an encoder: they are about the task itself."""

LOSES = "examples that had no part in choosing it do not bear that out"
GUESSES = "on examples that had no part in choosing it, it may do no better than chance"


@dataclass(frozen=True)
class LabelEvidence:
    """The contribution of every example to the score of every candidate.

    Candidates are all layers under the first readout, then all under the second, and so on.
    `judged` (candidates, n) is NaN where a layer is undefined. `groups` are the examples' classes,
    where they have any: resampling keeps their sizes. `rounds` (rounds, candidates, n) and
    `accuracy` (candidates,) are those of `Contributions`.
    """

    readouts: tuple[Readout, ...]
    layers: tuple[int, ...]
    measure: LabelMeasure
    groups: np.ndarray | None
    judged: np.ndarray
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None

    @property
    def defined(self) -> np.ndarray:
        """A mask of the candidates that can be scored."""
        return np.isfinite(self.judged).all(axis=1)

    @property
    def baseline(self) -> int:
        """The last layer under the default readout."""
        readout = self.readouts.index(Readout()) if Readout() in self.readouts else 0
        return (readout + 1) * len(self.layers) - 1

    def last_of(self, candidate: int) -> int:
        """Return the last layer under the candidate's readout."""
        return (candidate // len(self.layers) + 1) * len(self.layers) - 1

    def scores(self, draws: int = DRAWS, seed: int = 0) -> Scores:
        """Score every candidate on all examples and on resamples of them."""
        count = self.judged.shape[1]
        resamples = bootstrap_weights(count, draws, [seed, count, draws], self.groups)
        values = self._score(self.judged, np.concatenate([np.ones((1, count)), resamples]))
        return Scores(values[:, 0], values[:, 1:], "labels")

    def smooth(self, scores: Scores) -> Scores:
        """Return the scores averaged over neighboring layers, which a choice follows."""
        assert scores.draws is not None
        values = self._smooth(np.column_stack([scores.values, scores.draws]))
        return replace(scores, values=values[:, 0], draws=values[:, 1:])

    def values_without_tested(self) -> np.ndarray:
        """Return smoothed scores (candidates, rounds) by the examples that a round does not test."""
        untested = (~self.measure.tested).astype(np.float64)
        if self.rounds is None:
            return self._smooth(self._score(self.judged, untested))
        values = [
            self._score(np.where(weights > 0, judged, 0.0), weights[None])
            for judged, weights in zip(self.rounds, untested, strict=True)
        ]
        return self._smooth(np.concatenate(values, axis=1))

    def _score(self, judged: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return scores (candidates, draws) under weights (draws, n)."""
        return np.where(self.defined[:, None], self.measure.score(judged, weights), np.nan)

    def _smooth(self, values: np.ndarray) -> np.ndarray:
        """Average values (candidates, draws) over layers; over fewer in models with few layers."""
        count = len(self.layers)
        grid = values.reshape(len(self.readouts), count, -1)
        return smooth_layers(grid, WIDTH * (count - 1) / 30).reshape(values.shape)


def gather(
    labeled: Labeled,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    vectors: VectorSource,
    *,
    seed: int = 0,
    unit: bool = False,
    advance: Callable[[int], None] = lambda n: None,
) -> LabelEvidence:
    """Return the contribution of every example under every readout.

    Readouts that a probe cannot tell apart are computed once.
    """
    measure = make_measure(labeled, seed)
    computed: dict[Readout, Contributions] = {}
    contributions = {}
    for readout in readouts:
        equivalent = stands_for(readout, labeled, unit)
        if equivalent not in computed:
            computed[equivalent] = measure.items(vectors(equivalent))
        contributions[readout] = computed[equivalent]
        advance(1)
    return assemble(labeled, measure, contributions, layers)


def score_labels(
    labeled: Labeled,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    vectors: VectorSource,
    seed: int = 0,
) -> Scores:
    """Return the scores of candidates on labeled examples, smoothed over neighboring layers."""
    evidence = gather(labeled, readouts, layers, vectors, seed=seed)
    return evidence.smooth(evidence.scores(seed=seed))


def stands_for(readout: Readout, labeled: Labeled, unit: bool) -> Readout:
    """Return the readout that gives the same scores.

    A probe does not see centering, unless vectors are then scaled to length 1.
    """
    is_unseen = labeled.kind == "classification" and not unit and readout.centering != HEAD
    return replace(readout, centering="none") if is_unseen else readout


def assemble(
    labeled: Labeled,
    measure: LabelMeasure,
    contributions: Mapping[Readout, Contributions],
    layers: Sequence[int],
) -> LabelEvidence:
    """Put the contributions under several readouts together, in the readouts' order."""
    ordered = list(contributions.values())
    rounds = [contribution.rounds for contribution in ordered if contribution.rounds is not None]
    accuracy = [
        contribution.accuracy.mean(axis=1)
        for contribution in ordered
        if contribution.accuracy is not None
    ]
    return LabelEvidence(
        tuple(contributions),
        tuple(layers),
        measure,
        labeled.groups,
        np.concatenate([contribution.judged for contribution in ordered]),
        np.concatenate(rounds, axis=1) if rounds else None,
        np.concatenate(accuracy) if accuracy else None,
    )


def smooth_layers(scores: np.ndarray, width: float) -> np.ndarray:
    """Return a Gaussian average over the layers of scores (readouts, layers, draws).

    Undefined scores stay undefined.
    """
    if width <= 0:
        return scores
    layer = np.arange(scores.shape[1])
    kernel = np.exp(-0.5 * ((layer[:, None] - layer[None, :]) / width) ** 2)
    is_defined = np.isfinite(scores)
    total = np.einsum("kl,rlb->rkb", kernel, np.where(is_defined, scores, 0.0))
    weight = np.einsum("kl,rlb->rkb", kernel, is_defined.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(is_defined, total / weight, np.nan)


@dataclass(frozen=True)
class RoundGains:
    """The gain of a choice on examples that had no part in it: one value a round.

    The gain is over the baseline, over the last layer of the same readout, and over chance.
    """

    over_baseline: np.ndarray
    over_last: np.ndarray
    over_chance: np.ndarray


def gains_in_rounds(
    evidence: LabelEvidence, choose: Callable[[np.ndarray], np.ndarray]
) -> RoundGains:
    """Choose anew in every round, and measure on the examples that it sets aside."""
    measure = evidence.measure
    values = evidence.values_without_tested()
    choices = choose(np.where(np.isfinite(values), values, -np.inf))
    chance = measure.chance(measure.tested.astype(np.float64))
    rows = []
    for i, test in enumerate(measure.tested):
        judged = evidence.judged
        if evidence.rounds is not None:
            judged = np.where(test, evidence.rounds[i], 0.0)
        places = [choices[i], evidence.baseline, evidence.last_of(choices[i])]
        with np.errstate(invalid="ignore", divide="ignore"):
            scores = measure.score(judged[places], test[None].astype(float))[:, 0]
        chosen, baseline, last = scores
        rows.append((chosen - baseline, chosen - last, chosen - chance[i]))
    return RoundGains(*np.array(rows).T)


@dataclass(frozen=True)
class LabelDecision:
    """A decision by labels, and the gains of the readout and the layer (scores from 0 to 1)."""

    decision: Decision
    gain_readout: Interval
    gain_layer: Interval


def decide_by_labels(
    evidence: LabelEvidence,
    scores: Scores,
    budget: float | None = None,
    tolerance: float = 0.0,
) -> LabelDecision:
    """Choose by smoothed scores; the gain is judged by examples that had no part in the choice."""
    blocks = evidence.layers[-1]
    costs = [layer / blocks for layer in evidence.layers]
    candidates = []
    for readout in evidence.readouts:
        candidates += layers_of(readout, evidence.layers, costs)
    smoothed = evidence.smooth(scores)
    baseline = evidence.baseline
    limits = Limits(budget, tolerance=tolerance, stay=True)
    rule = Rule.of(candidates, smoothed, baseline, limits)
    gains = gains_in_rounds(evidence, rule.choose)
    gain = _mean(gains.over_baseline)
    draws = scores.draws
    assert draws is not None
    nothing = Interval(0.0, 0.0, 0.0)

    def interval(value: float, candidate: int, reference: int) -> Interval:
        """Return a gain with the interval of the difference of two candidates."""
        if candidate == reference:
            return nothing
        moves = _centered(draws[candidate] - draws[reference])
        low, high = np.nanquantile(value + moves, [0.025, 0.975])
        return Interval(value, float(low), float(high))

    def make_claim(_rule: Rule, candidate: int, reference: int) -> Claim:
        before = float(scores.values[reference])
        after = float(scores.values[candidate])
        if candidate == reference:
            return Claim(scores.source, before, after, nothing, 0.0)
        risk = _share_below(gain + _centered(draws[candidate] - draws[reference]))
        weak = LOSES if risk >= RISK or gain <= 0 else ""
        if _share_below(_mean(gains.over_chance) + _centered(draws[candidate])) > CHANCE:
            weak = GUESSES
        return Claim(scores.source, before, after, interval(gain, candidate, reference), risk, weak)

    decision = decide(candidates, [smoothed], baseline, limits, make_claim)
    chosen = decision.chosen
    last = evidence.last_of(decision.chosen)
    whole = decision.claim.gain.value
    by_layer = _mean(gains.over_last)
    if last == baseline:  # all of the gain is the layer's under the default readout
        by_layer = whole
    elif chosen == last:
        by_layer = 0.0
    return LabelDecision(
        decision, interval(whole - by_layer, last, baseline), interval(by_layer, chosen, last)
    )


def _centered(draws: np.ndarray) -> np.ndarray:
    return draws - np.nanmean(draws)


def _share_below(draws: np.ndarray) -> float:
    """Return the share of draws below zero; half of those at zero."""
    finite = draws[np.isfinite(draws)]
    return float(((finite < 0) + 0.5 * (finite == 0)).mean())


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
