"""What a judge is: candidates in, a score of each out, with its spread over resampled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from layerscope.core.candidates import DRAWS, ScoredCandidates
from layerscope.core.readout import Readout
from layerscope.core.statistics import bootstrap_weights

TEXTS = "texts"
"""The view that every judge may ask for: the texts as they are."""


class Candidates(Protocol):
    """Layers of a model under several readouts, as vectors of the same texts."""

    readouts: Sequence[Readout]
    layers: Sequence[int]

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray | Tensor:
        """(layers, texts, D) under a readout, as an array or a tensor on any device.

        NaN throughout at a layer where all texts have the same vector.
        """
        ...


@runtime_checkable
class Judge(Protocol):
    """A way to tell good candidates from bad ones. `views` are those it needs besides the texts
    themselves."""

    name: str
    summary: str
    views: tuple[str, ...]

    def judge(self, candidates: Candidates, *, seed: int = 0) -> ScoredCandidates:
        """Score every candidate."""
        ...


def text_weights(count: int, seed: int = 0) -> np.ndarray:
    """How often each of `count` texts is drawn, as shares (draws, count)."""
    return bootstrap_weights(count, DRAWS, [seed, count, DRAWS]) / count


def scored_by_items(
    judge: str, items: np.ndarray, seed: int, sides: int = 2, **facts: Any
) -> ScoredCandidates:
    """Scores that are the mean of what each text contributes: items (readouts, layers, texts).

    A text counts as often as it is asked for its neighbors and as often as it is a neighbor: with
    two `sides`, deviations of the resampled means are doubled, which is their first-order effect.
    """
    score = items.mean(-1, dtype=np.float64)
    drawn = items.astype(np.float64) @ text_weights(items.shape[-1], seed).T
    return ScoredCandidates(
        score, score[..., None] + sides * (drawn - score[..., None]), judge=judge, facts=facts
    )


def rank_of(values: np.ndarray) -> np.ndarray:
    """Ranks along the first axis from 0 (worst) to 1 (best); undefined values stay NaN.

    >>> rank_of(np.array([3.0, 1.0, np.nan, 2.0])).tolist()
    [1.0, 0.0, nan, 0.5]
    """
    known = np.isfinite(values)
    order = (
        np.where(known, values, -np.inf)
        .argsort(0, kind="stable")
        .argsort(0, kind="stable")
        .astype(np.float64)
    )
    missing = (~known).sum(0)
    return np.where(known, (order - missing) / np.maximum(known.sum(0) - 1, 1), np.nan)


def with_second_opinion(
    first: ScoredCandidates, second: ScoredCandidates, among: np.ndarray, weight: float
) -> ScoredCandidates:
    """The first scores plus a share of the second, both standardized over some candidates;
    undefined for all others."""
    known = among & first.defined & second.defined
    if second.draws is None or first.draws is None or known.sum() < 2:
        return first.where(among)
    return _added([first.where(known), second.where(known)], [1.0, weight])


def combined(
    said: Sequence[ScoredCandidates], shares: Sequence[float] | None = None
) -> ScoredCandidates:
    """The scores of several judges as one: standardized over the candidates, weighted by how
    reliable each is, and added.

    Reliability is the share of a judge's variance over candidates that is not resampling noise; a
    judge without draws is taken at its word. `shares` says what each judge counts besides: by
    default all the same.
    """
    if len(said) == 1:
        return said[0]
    weights = []
    for one, share in zip(said, shares or [1.0] * len(said), strict=True):
        noise = 0.0 if one.draws is None else one.draws[one.defined].var(-1).mean()
        weights.append(share * max(0.0, 1 - noise / (one.score[one.defined].std() or 1.0) ** 2))
    return replace(_added(said, weights), judge="+".join(one.judge for one in said), facts={})


def _added(said: Sequence[ScoredCandidates], weights: Sequence[float]) -> ScoredCandidates:
    """The weighted sums of standardized scores and of their draws, as far as every judge has
    draws."""
    score, draws = np.zeros(said[0].score.shape), np.zeros((*said[0].score.shape, 1))
    count = min((one.draws.shape[-1] for one in said if one.draws is not None), default=0)
    for one, weight in zip(said, weights, strict=True):
        mean, spread = one.score[one.defined].mean(), one.score[one.defined].std() or 1.0
        drawn = one.score[..., None] if one.draws is None else one.draws[..., :count]
        score, draws = (
            score + weight * (one.score - mean) / spread,
            draws + weight * (drawn - mean) / spread,
        )
    return replace(said[0], score=score, draws=draws if count else None)
