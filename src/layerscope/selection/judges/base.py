"""What a judge is: candidates in, a score of each out, with its spread over resampled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from layerscope.core.plugins import Registry
from layerscope.core.readout import Readout

DRAWS = 200
"""Resamples of the texts behind every interval."""

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


@dataclass(frozen=True)
class Judgment:
    """Scores (readouts, layers) of one judge, higher is better, NaN where undefined.

    `draws` (readouts, layers, draws) are the scores on resampled texts; every candidate sees the same resamples, so that
    differences of two candidates can be resampled as well. None: the judge says nothing about its certainty. `facts` are for
    the report.
    """

    judge: str
    score: np.ndarray
    draws: np.ndarray | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def defined(self) -> np.ndarray:
        """(readouts, layers): which candidates have a score."""
        return np.isfinite(self.score)

    def only(self, readouts: Sequence[int]) -> Judgment:
        """The same for some of the readouts, by their places."""
        which = list(readouts)
        return Judgment(self.judge, self.score[which], None if self.draws is None else self.draws[which], self.facts)

    def best(self, allowed: np.ndarray | None = None) -> tuple[int, int]:
        """The place (readout, layer) of the highest score; of equals the first."""
        known = self.defined if allowed is None else self.defined & allowed
        values = np.where(known, self.score, -np.inf)
        readout, layer = np.unravel_index(int(values.argmax()), values.shape)
        return int(readout), int(layer)

    def interval(self, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds (readouts, layers) of the scores; NaN where the judge gives no resamples."""
        if self.draws is None:
            unknown = np.full(self.score.shape, np.nan)
            return unknown, unknown
        tail = (1 - level) / 2
        low, high = np.quantile(np.where(self.defined[..., None], self.draws, 0.0), [tail, 1 - tail], axis=-1)
        return np.where(self.defined, low, np.nan), np.where(self.defined, high, np.nan)

    def difference(self, first: tuple[int, int], second: tuple[int, int]) -> tuple[float, np.ndarray | None]:
        """How far the first candidate is ahead of the second, and the same on every resample."""
        gap = float(self.score[first] - self.score[second])
        return gap, None if self.draws is None else self.draws[first] - self.draws[second]


@runtime_checkable
class Judge(Protocol):
    """One way of telling good candidates. `views` are those it needs besides the texts themselves."""

    name: str
    summary: str
    views: tuple[str, ...]

    def judge(self, candidates: Candidates, *, seed: int = 0) -> Judgment:
        """Score every candidate."""
        ...


def _is_judge(thing: Any) -> bool:
    return isinstance(thing, type) and isinstance(getattr(thing, "name", None), str) and callable(getattr(thing, "judge", None))


def _in_module(module: Any) -> list[type[Judge]]:
    """The judges that a module defines."""
    mine = [thing for thing in vars(module).values() if _is_judge(thing) and thing.__module__ == module.__name__]
    return [thing for thing in mine if thing.name and not thing.__name__.startswith("_")]


JUDGES: Registry[type[Judge]] = Registry(
    "judge",
    "layerscope.judges",
    name=lambda judge: judge.name,
    check=_is_judge,
    package="layerscope.selection.judges",
    find=_in_module,
)


def judges() -> dict[str, type[Judge]]:
    """All judges by name, those of other packages included."""
    return JUDGES.all()


def resample_weights(count: int, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """How often each of `count` texts is drawn, as shares (draws, count)."""
    rng = np.random.default_rng([seed, count, draws])
    return rng.multinomial(count, np.full(count, 1 / count), size=draws) / count


def judgment_of_items(judge: str, items: np.ndarray, seed: int, sides: int = 2, **facts: Any) -> Judgment:
    """A judgment whose score is the mean of what each text contributes: items (readouts, layers, texts).

    A text counts as often as it is asked for its neighbors and as often as it is a neighbor: with two `sides`, deviations of
    the resampled means are doubled, which is their first-order effect.
    """
    score = items.mean(-1, dtype=np.float64)
    drawn = items.astype(np.float64) @ resample_weights(items.shape[-1], seed=seed).T
    return Judgment(judge, score, score[..., None] + sides * (drawn - score[..., None]), facts)


def rank_of(values: np.ndarray) -> np.ndarray:
    """Ranks along the first axis from 0 (worst) to 1 (best); undefined values stay NaN.

    >>> rank_of(np.array([3.0, 1.0, np.nan, 2.0])).tolist()
    [1.0, 0.0, nan, 0.5]
    """
    known = np.isfinite(values)
    order = np.where(known, values, -np.inf).argsort(0, kind="stable").argsort(0, kind="stable").astype(np.float64)
    missing = (~known).sum(0)
    return np.where(known, (order - missing) / np.maximum(known.sum(0) - 1, 1), np.nan)


def with_second_opinion(first: Judgment, second: Judgment, among: np.ndarray, weight: float) -> Judgment:
    """The first judgment plus a share of the second, both standardized over some candidates; undefined for all others."""
    known = among & first.defined & second.defined
    if second.draws is None or first.draws is None or known.sum() < 2:
        return Judgment(first.judge, np.where(among, first.score, np.nan), first.draws, first.facts)
    count = min(first.draws.shape[-1], second.draws.shape[-1])
    total, drawn = np.zeros_like(first.score), np.zeros((*first.score.shape, count))
    for judgment, share in ((first, 1.0), (second, weight)):
        assert judgment.draws is not None
        mean, spread = judgment.score[known].mean(), judgment.score[known].std() or 1.0
        total = total + share * (judgment.score - mean) / spread
        drawn = drawn + share * (judgment.draws[..., :count] - mean) / spread
    return Judgment(first.judge, np.where(known, total, np.nan), np.where(known[..., None], drawn, np.nan), first.facts)


def combined(judgments: Sequence[Judgment], shares: Sequence[float] | None = None) -> Judgment:
    """Several judgments as one: standardized over the candidates, weighted by how reliable each is, and added.

    Reliability is the share of a judge's variance over candidates that is not resampling noise. `shares` says what each judge
    counts besides: by default all the same.
    """
    if len(judgments) == 1:
        return judgments[0]
    total, drawn, weights = 0.0, 0.0, {}
    # judges resample different things (texts, labels), each as often as it likes: draws are paired as far as both go
    count = min((judgment.draws.shape[-1] for judgment in judgments if judgment.draws is not None), default=1)
    for judgment, share in zip(judgments, shares or [1.0] * len(judgments), strict=True):
        # a judge that says nothing about its certainty is taken at its word
        draws = judgment.score[..., None] if judgment.draws is None else judgment.draws
        known = judgment.defined
        mean, spread = judgment.score[known].mean(), judgment.score[known].std() or 1.0
        noise = draws[known].var(-1).mean()
        weight = share * max(0.0, 1 - noise / spread**2)
        weights[judgment.judge] = weight
        total = total + weight * (judgment.score - mean) / spread
        drawn = drawn + weight * (draws[..., :count] - mean) / spread
    facts = {"weights": weights, "parts": {judgment.judge: judgment.facts for judgment in judgments}}
    return Judgment("+".join(judgment.judge for judgment in judgments), np.asarray(total), np.asarray(drawn), facts)
