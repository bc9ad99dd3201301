"""The rule that chooses among candidates: of those near the best expected score the cheapest.

No other code chooses among candidates. Labels, judges, evaluations and profiles differ in their
arguments: the sources and their weights, the limits, and the way a gain is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from layerscope.choose.candidates import Candidate, Claim, Limits
from layerscope.core.scores import Scores, add_sources
from layerscope.core.statistics import Interval
from layerscope.errors import InvalidValueError, LayerscopeError

_ROUNDING = 1e-9

CHEAPER_WITHIN = 0.025
"""Of candidates within so many standard errors of the best, `improve` chooses the cheapest. This is
a preference, tuned on benchmarks, for what costs less at practically the same score; what cannot be
told from the best is far more (`Decision.tied`)."""

SECOND = 0.25
"""The weight of a second opinion, next to the judge: how well texts are recognized by their parts.
It tells layers apart that an encoder cannot."""

LEAD = 1.5
"""By so many standard errors of the difference a choice of a judge has to lead the baseline. A gain
is expected then, and not yet shown: the interval of the claim says what is
(`benchmarks/results/choices.md`)."""

REFERENCE_LABELS = 64
"""The number of labels that weigh twice as much as an encoder, and that stop a choice where they
rank the baseline above it (`benchmarks/results/choices.md`)."""

NOT_SHOWN = "the texts do not show that it is better than what you have"


LABELS_DISAGREE = "your labels do not agree that it is better than what you have"


def weight_of_labels(count: int) -> float:
    """Return the weight of so many labels next to an encoder.

    It is twice the encoder's for 64 labels and grows with the square root of their number.

    >>> weight_of_labels(256)
    4.0
    """
    return 2 * math.sqrt(count / REFERENCE_LABELS)


def lead_by_labels(count: int) -> float:
    """Return the lead by labels alone that a choice of labels and others needs.

    It is in standard errors, and never more than `LEAD`. Few labels stop a choice only where they
    speak clearly against it; many have to confirm it.

    >>> lead_by_labels(16), lead_by_labels(256)
    (-1.0, 1.0)
    """
    return min(LEAD, math.log(count / REFERENCE_LABELS, 4))


def limits_by_judge(budget: float | None, stay: bool = True) -> Limits:
    """Return the limits by which `improve` picks a layer and a readout."""
    return Limits(budget, errors=CHEAPER_WITHIN, stay=stay)


def decide_by_judge(
    candidates: Sequence[Candidate],
    judgment: Scores,
    baseline: int,
    budget: float | None,
    second_opinion: Callable[[str], Scores] | None = None,
    lead: float | None = None,
    labels: LabelCheck | None = None,
) -> Decision:
    """Choose a layer and a readout by a judge's scores: the rule of `improve`.

    The judge chooses the template. Among the layers of that template the second opinion counts a
    little. It never decides whether there is a gain at all: that is the judge's to show. Heads are
    told apart by the judge alone. `lead` and `labels` are those of `claim_of_any`.
    """
    limits = limits_by_judge(budget)
    make_claim = claim_of_any(judgment, lead, labels)
    decision = decide(candidates, [judgment], baseline, limits, make_claim)
    best = candidates[decision.best]
    if second_opinion is None or best.readout is None:
        return decision
    if decision.chosen == baseline or best.transform == "head":
        return decision
    sources = [judgment, second_opinion(best.readout.template)]
    return decide(candidates, sources, baseline, limits, make_claim)


def decide(
    candidates: Sequence[Candidate],
    scores: Sequence[Scores],
    baseline: int | Sequence[int],
    limits: Limits | None = None,
    make_claim: ClaimMaker | None = None,
    noise: np.ndarray | float = 0.0,
) -> Decision:
    """Choose a candidate.

    - `scores`: the sources, which are added with their weights. Only candidates that every source
      scores may be chosen.
    - `baseline`: the candidate that stays unless another is better; one for each candidate where
      these differ.
    - `limits`: the budget, the distance to the best at which a cheaper candidate is chosen, and
      the cases in which the baseline stays. Without limits the best is chosen.
    - `make_claim`: the function that claims a gain over the baseline; by default from the first
      source, as if the choice had been named beforehand.
    - `noise`: added to the scores before choosing, so that a claim can be made with what the
      choice did not see (`SplitScores`).

    >>> candidates = [Candidate((0, 1)), Candidate((0,), cost=0.5)]
    >>> source = Scores(np.array([1.0, 0.9]), np.array([[1.0, 1.0], [0.89, 0.91]]), "encoder")
    >>> decide(candidates, [source], 0, Limits(budget=0.5)).chosen
    1
    """
    limits = limits or Limits()
    within = affordable(candidates, limits)
    expected = add_sources(scores, unblocked(candidates) & within)
    rule = Rule.of(candidates, expected, baseline, limits)
    picked = int(rule.choose((expected.values + noise)[:, None])[0])
    stays = int(rule.baselines[picked])
    claim = (make_claim or claim_as_named(scores[0]))(rule, picked, stays)
    weak = claim.weak if limits.stay and within[stays] else ""
    if weak:
        claim = replace(claim, after=claim.before, gain=Interval(0.0, 0.0, 0.0), risk=0.0)
    return Decision(
        chosen=stays if weak else picked,
        picked=picked,
        best=rule.best,
        baseline=stays,
        expected=expected,
        near=rule.near(expected.values[:, None])[:, 0],
        tied=expected.tied(rule.compared),
        claim=claim,
        weak=weak,
        rule=rule,
    )


@dataclass(frozen=True)
class Decision:
    """The candidate that was chosen; candidates are places in their list.

    - `picked`: the candidate that the scores lead to, before a weak claim made the baseline stay.
    - `best`: the candidate with the highest expected score of those that are compared.
    - `near`: a mask of the candidates within the budget that score high enough to be chosen.
    - `tied`: a mask of the candidates that cannot be told from the best.
    - `weak`: the reason why the baseline stays although another scores higher; empty otherwise.
    - `rule`: the function from scores to the choice.
    """

    chosen: int
    picked: int
    best: int
    baseline: int
    expected: Scores
    near: np.ndarray
    tied: np.ndarray
    claim: Claim
    weak: str
    rule: Rule

    @property
    def kept(self) -> bool:
        """True if a candidate within the budget scores high enough."""
        return bool(self.near.any())

    @property
    def certainty(self) -> float | None:
        """The share of resamples that lead to the same candidate; None without resamples."""
        if self.expected.draws is None:
            return None
        return float((self.rule.choose(self.expected.draws) == self.picked).mean())

    @property
    def tied_layers(self) -> tuple[int, ...]:
        """The layers under the chosen readout that are tied with the best, and the chosen one."""
        candidates = self.rule.candidates
        chosen = candidates[self.chosen]
        layers = {
            candidate.layer
            for candidate, tied in zip(candidates, self.tied, strict=True)
            if tied and candidate.readout_name == chosen.readout_name
        }
        return tuple(sorted(layers | {chosen.layer}))


@dataclass(frozen=True)
class Rule:
    """The function from scores to the choice, for given candidates and limits.

    A claim about the choice applies it again to many scores at once. `scores` are the expected
    scores. `baselines` has the candidate that stays, for each candidate.
    """

    candidates: Sequence[Candidate]
    scores: Scores
    baselines: np.ndarray
    limits: Limits
    _slack_by_best: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidate],
        scores: Scores,
        baseline: int | Sequence[int],
        limits: Limits,
    ) -> Rule:
        """Return the rule; an error if nothing may be chosen."""
        if not scores.defined.any():
            raise LayerscopeError(
                "no candidate has a score: all texts have the same vector everywhere."
            )
        baselines = np.broadcast_to(np.asarray(baseline), len(candidates))
        rule = cls(candidates, scores, baselines, limits)
        if not rule.within.any():
            scored = rule.open if rule.open.any() else scores.defined
            raise over_budget(limits.budget or 0, float(rule.cost[scored].min()))
        return rule

    @cached_property
    def cost(self) -> np.ndarray:
        """The cost of every candidate."""
        return np.array([candidate.cost for candidate in self.candidates])

    @cached_property
    def open(self) -> np.ndarray:
        """A mask of the candidates that are scored and not blocked."""
        return unblocked(self.candidates) & self.scores.defined

    @cached_property
    def within(self) -> np.ndarray:
        """A mask of the open candidates within the budget."""
        return self.open & affordable(self.candidates, self.limits)

    @cached_property
    def compared(self) -> np.ndarray:
        """A mask of the candidates among which the best is looked for."""
        return self.open if self.limits.same_readout else self.within

    @cached_property
    def best(self) -> int:
        """The compared candidate with the highest expected score."""
        return int(self._highest(self.scores.values[:, None], self.compared)[0])

    def choose(self, values: np.ndarray) -> np.ndarray:
        """Return the choices (n,) that scores (candidates, n) lead to."""
        chosen = self._cheapest_near(values)
        if self.limits.lead is None:
            return chosen
        columns = np.arange(values.shape[1])
        stays = self.baselines[chosen]
        lead = values[chosen, columns] - values[stays, columns]
        return np.where((lead > self.limits.lead + 1e-12) | (stays == chosen), chosen, stays)

    def near(self, values: np.ndarray) -> np.ndarray:
        """Return a mask (candidates, n) of those within the budget that score high enough."""
        if self.limits.keep is not None:
            threshold = self.limits.keep * values[self.baselines[0]]
        else:
            best = self._highest(values, self.compared)
            slack = np.stack([self._slack(int(place)) for place in best], axis=1)
            threshold = values[best, np.arange(values.shape[1])] - slack
        return self._allowed(values) & (values >= threshold - _ROUNDING)

    def _cheapest_near(self, values: np.ndarray) -> np.ndarray:
        """Return the cheapest near candidates; the highest within the budget where none is near."""
        limits = self.limits
        if limits.keep is None and not (limits.tolerance or limits.errors or limits.ties):
            return self._highest(values, self.within)
        near = self.near(values)
        cost = np.where(near, self.cost[:, None], np.inf)
        cheapest = np.where(near & (cost == cost.min(axis=0)), values, -np.inf).argmax(axis=0)
        allowed = np.where(self._allowed(values), values, -np.inf)
        return np.where(near.any(axis=0), cheapest, self._highest(allowed, self.within))

    def _allowed(self, values: np.ndarray) -> np.ndarray:
        """Return a mask (candidates, n) of those within the budget that the limits allow."""
        within = np.broadcast_to(self.within[:, None], values.shape)
        if not self.limits.same_readout:
            return within
        readouts = [candidate.readout for candidate in self.candidates]
        number = np.array([readouts.index(readout) for readout in readouts])
        matching = within & (number[:, None] == number[self._highest(values, self.compared)])
        return np.where(matching.any(axis=0), matching, within)

    def _highest(self, values: np.ndarray, allowed: np.ndarray) -> np.ndarray:
        """Return the candidates (n,) with the highest scores; of equal ones the cheapest."""
        order = np.argsort(self.cost, kind="stable")
        order = order[allowed[order]]
        highest: np.ndarray = order[values[order].argmax(axis=0)]
        return highest

    def _slack(self, best: int) -> np.ndarray:
        """Return the distance below the best at which each candidate is near."""
        if best not in self._slack_by_best:
            limits = self.limits
            draws = self.scores.draws
            slack = np.full(len(self.cost), limits.tolerance)
            if limits.errors and draws is not None:
                slack = np.maximum(slack, limits.errors * (draws[best] - draws).std(axis=1))
            if limits.ties:
                slack = np.maximum(slack, self.scores.slack(best, self.open))
            self._slack_by_best[best] = slack
        return self._slack_by_best[best]


ClaimMaker = Callable[[Rule, int, int], Claim]
"""A function from a rule, its choice and another candidate to the claimed gain."""


def claim_as_named(source: Scores) -> ClaimMaker:
    """Claim the gain as if both candidates had been named before they were scored."""

    def make_claim(_rule: Rule, chosen: int, reference: int) -> Claim:
        before = float(source.values[reference])
        after = float(source.values[chosen])
        return Claim(source.source, before, after, source.gain(chosen, reference))

    return make_claim


@dataclass(frozen=True)
class LabelCheck:
    """The scores by labels alone, and their number: they may stop what labels and others chose."""

    scores: Scores
    count: int

    def agree(self, chosen: int, reference: int) -> bool:
        """Return whether the labels agree that one candidate is better than another."""
        gain = self.scores.gain(chosen, reference).value
        least = lead_by_labels(self.count) * self.scores.error_of_gain(chosen, reference)
        return bool(gain > least)


def claim_of_any(
    source: Scores, lead: float | None = None, labels: LabelCheck | None = None
) -> ClaimMaker:
    """Claim the gain with an interval that holds for whichever candidate was picked.

    The claim is weak where the interval reaches zero. With `lead` it is weak only where the gain is
    no more than so many of its own standard errors. It is weak as well where `labels` disagree.
    """

    def make_claim(rule: Rule, chosen: int, reference: int) -> Claim:
        among = unblocked(rule.candidates) & affordable(rule.candidates, rule.limits)
        gain = source.gain_of_pick(chosen, reference, among)
        before = float(source.values[reference])
        after = float(source.values[chosen])
        is_enough = gain.low > 0
        if lead is not None:
            is_enough = gain.value > lead * source.error_of_gain(chosen, reference)
        # a cheaper candidate near the baseline needs no proof of a gain where the baseline is best
        weak = "" if is_enough or rule.best == reference else NOT_SHOWN
        if labels is not None and chosen != reference and not labels.agree(chosen, reference):
            weak = weak or LABELS_DISAGREE
        return Claim(source.source, before, after, gain, weak=weak)

    return make_claim


def unblocked(candidates: Sequence[Candidate]) -> np.ndarray:
    """Return a mask of the candidates that may be chosen."""
    return np.array([not candidate.blocked for candidate in candidates])


def affordable(candidates: Sequence[Candidate], limits: Limits) -> np.ndarray:
    """Return a mask of the candidates within the budget."""
    cost = np.array([candidate.cost for candidate in candidates])
    return cost <= (np.inf if limits.budget is None else limits.budget + _ROUNDING)


def bound_warning(decision: Decision) -> list[str]:
    """Return a warning if no layer within the bound is near the best."""
    if decision.kept:
        return []
    values = decision.expected.values
    lost = values[decision.best] - values[decision.chosen]
    layer = decision.rule.candidates[decision.chosen].layer
    return [
        f"no layer within max_blocks= is within {decision.rule.limits.tolerance:g} points of the "
        f"best: layer {layer} is expected to be {lost:.1f} below."
    ]


def over_budget(budget: float, smallest: float) -> InvalidValueError:
    """Return the error for a budget that no candidate keeps."""
    return InvalidValueError(
        f"no candidate costs at most {budget:g} of the baseline's computation: the cheapest costs "
        f"{smallest:.2f}. Allow {smallest:.2f} or more."
    )
