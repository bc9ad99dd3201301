"""The decision: of the candidates near the best expected score the cheapest, and what is claimed.

No other code chooses among candidates. What differs between labels, judges, evaluations and
profiles are the arguments: the sources and their weights, the limits, and how a claim is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.choose.claims import claim_as_named
from layerscope.choose.rule import ClaimMaker, Rule, affordable, unblocked
from layerscope.choose.types import Candidate, Claim, Limits
from layerscope.core.scores import Scores
from layerscope.core.statistics import Interval

__all__ = ["Decision", "add_sources", "decide", "weigh_by_reliability"]


@dataclass(frozen=True)
class Decision:
    """The candidate that was chosen; candidates are places in their list.

    - `picked`: what the scores lead to, before a weak claim made the baseline stay.
    - `best`: the candidate with the highest expected score of those that are compared.
    - `near`: a mask of the candidates within the budget that score high enough to be chosen.
    - `tied`: a mask of the candidates that cannot be told from the best.
    - `weak`: why the baseline stayed although another scores higher; empty otherwise.
    - `rule`: what leads from scores to the choice.
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
        """Whether a candidate within the budget scores high enough."""
        return bool(self.near.any())

    @property
    def tied_layers(self) -> tuple[int, ...]:
        """The layers under the chosen readout that are tied with the best, and the chosen one."""
        candidates = self.rule.candidates
        chosen = candidates[self.chosen]
        layers = {
            candidate.layer
            for candidate, tied in zip(candidates, self.tied, strict=True)
            if tied and candidate.readout == chosen.readout
        }
        return tuple(sorted(layers | {chosen.layer}))


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
    - `limits`: the budget, how near to the best a cheaper candidate has to be, and when the
      baseline stays. Without limits the best is chosen.
    - `make_claim`: how the gain over the baseline is claimed; by default from the first source, as
      if the choice had been named beforehand.
    - `noise`: what is added to the scores before choosing, so that a claim can be made with what
      the choice did not see (`SplitScores`).

    >>> ways = [Candidate((0, 1)), Candidate((0,), cost=0.5)]
    >>> source = Scores(np.array([1.0, 0.9]), np.array([[1.0, 1.0], [0.89, 0.91]]), "encoder")
    >>> decide(ways, [source], 0, Limits(budget=0.5)).chosen
    1
    """
    limits = limits or Limits()
    within = affordable(candidates, limits)
    expected = add_sources(scores, unblocked(candidates) & within)
    rule = Rule.of(candidates, expected, baseline, limits)
    chosen = int(rule.choose((expected.values + noise)[:, None])[0])
    stays = int(rule.baselines[chosen])
    claim = (make_claim or claim_as_named(scores[0]))(rule, chosen, chosen, stays)
    weak = claim.weak if limits.stay and within[stays] else ""
    if weak:
        claim = replace(claim, after=claim.before, gain=Interval(0.0, 0.0, 0.0), risk=0.0)
    return Decision(
        chosen=stays if weak else chosen,
        picked=chosen,
        best=rule.best,
        baseline=stays,
        expected=expected,
        near=rule.near(expected.values[:, None])[:, 0],
        tied=expected.tied(rule.compared),
        claim=claim,
        weak=weak,
        rule=rule,
    )


def add_sources(scores: Sequence[Scores], among: np.ndarray) -> Scores:
    """Return the weighted sum of sources, each standardized over the candidates that all score.

    A single source stays as it is. Draws are summed as far as every source has them.
    """
    common = among & np.logical_and.reduce([source.defined for source in scores])
    if len(scores) == 1 or common.sum() < 2:
        return scores[0]
    return _weighted_sum([source.where(common) for source in scores])


def weigh_by_reliability(scores: Sequence[Scores]) -> Scores:
    """Return several sources as one: standardized, weighted by how reliable each is, and added.

    Reliability is the share of a source's variance over candidates that is not resampling noise. A
    source without draws is taken as it is. Weights of the sources count besides.
    """
    if len(scores) == 1:
        return scores[0]
    sources = []
    for source in scores:
        known = source.defined
        noise = 0.0 if source.draws is None else source.draws[known].var(axis=1).mean()
        spread = source.values[known].std() or 1.0
        reliability = max(0.0, 1 - noise / spread**2)
        sources.append(replace(source, weight=source.weight * reliability))
    return replace(_weighted_sum(sources), source="+".join(source.source for source in scores))


def _weighted_sum(scores: Sequence[Scores]) -> Scores:
    """Add standardized scores with their weights."""
    count = min((one.draws.shape[1] for one in scores if one.draws is not None), default=0)
    values = np.zeros(len(scores[0].values))
    draws = np.zeros((len(values), count))
    for source in scores:
        known = source.values[source.defined]
        mean = known.mean()
        scale = source.weight / (known.std() or 1.0)
        values = values + scale * (source.values - mean)
        if source.draws is None:
            draws = draws + scale * (source.values[:, None] - mean)
        else:
            draws = draws + scale * (source.draws[:, :count] - mean)
    return Scores(values, draws if count else None, scores[0].source)
