"""A judge scores candidates without a task, with the spread of the scores over resampled texts.

`layerscope.improve(judge=…)` takes one. The built-in judges measure agreement about neighbors: for
every text, which texts are its 10 nearest (the overlap with a reference), and in which order the
reference's 50 nearest lie (a rank correlation). Their mean is the text's contribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from layerscope.choose.candidates import Candidate
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import bootstrap_weights

__all__ = ["Candidates", "Judge", "Scores"]

TEXTS = "texts"
"""The view that every judge may use: the texts as they are."""

NEIGHBORS = 10
NEAR = 50
EQUAL = 3e-7
"""Cosines that differ by no more are equal: those of equal vectors do, by rounding."""


class Candidates(Protocol):
    """Candidates with their vectors of the same texts."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The candidates, in the order of the scores."""
        ...

    def vectors(self, candidate: Candidate, view: str = TEXTS) -> np.ndarray | Tensor:
        """Return vectors (texts, D) of one candidate, as an array or a tensor on any device.

        NaN throughout where all texts have the same vector.
        """
        ...


@runtime_checkable
class Judge(Protocol):
    """A way to tell good candidates from bad ones. `views` are those it needs besides the texts."""

    name: str
    views: tuple[str, ...]

    def judge(self, candidates: Candidates, *, seed: int = 0) -> Scores:
        """Score every candidate."""
        ...


def text_weights(count: int, seed: int = 0) -> np.ndarray:
    """Return the share of each of `count` texts in each resample (draws, count)."""
    return bootstrap_weights(count, DRAWS, [seed, count, DRAWS]) / count


def scores_of_items(source: str, items: np.ndarray, seed: int, sides: int = 2) -> Scores:
    """Return scores that are the mean of the texts' contributions, items (candidates, texts).

    A text counts as often as its neighbors are looked up and as often as it is a neighbor. With two
    `sides`, deviations of the resampled means are doubled, which is their first-order effect.
    """
    values = items.mean(axis=1, dtype=np.float64)
    means = items.astype(np.float64) @ text_weights(items.shape[1], seed).T
    return Scores(values, values[:, None] + sides * (means - values[:, None]), source)


def similarities(vectors: np.ndarray | Tensor) -> Tensor:
    """Return cosines (n, n) of vectors (n, D), on a GPU where there is one.

    The diagonal is −inf: no text is its own neighbor.
    """
    return cosines(vectors, vectors).fill_diagonal_(-torch.inf)


def cosines(rows: np.ndarray | Tensor, columns: np.ndarray | Tensor) -> Tensor:
    """Return cosines (n, m) of vectors (n, D) and (m, D), on a GPU where there is one."""
    sides = [torch.as_tensor(side) for side in (rows, columns)]
    device = "cuda" if torch.cuda.is_available() else sides[0].device
    unit_rows, unit_columns = (
        torch.nn.functional.normalize(side.float(), dim=-1).to(device) for side in sides
    )
    return unit_rows @ unit_columns.T


@dataclass(frozen=True)
class Neighborhoods:
    """The nearest texts of every text by a reference.

    They are made from similarities (n, n) with −inf on the diagonal, or of other texts (m, n).
    `member` is a mask of the `count` nearest. `near` are more of them in order, with the centered
    `ranks` of these places.
    """

    member: Tensor
    near: Tensor
    ranks: Tensor
    count: int

    @classmethod
    def of(cls, similarity: Tensor, neighbors: int = NEIGHBORS, near: int = NEAR) -> Neighborhoods:
        """Return the neighbors by similarities; of few texts at most half are near."""
        half = (similarity.shape[-1] - 1) // 2
        count = max(1, min(neighbors, half))
        wide = max(2, min(near, half))
        nearest = similarity.topk(max(count, wide), dim=-1).indices
        member = torch.zeros_like(similarity, dtype=torch.bool)
        member.scatter_(1, nearest[:, :count], True)
        ranks = torch.arange(wide, 0, -1, dtype=torch.float32, device=similarity.device)
        return cls(member, nearest[:, :wide], ranks - ranks.mean(), count)

    def agreement(self, similarity: Tensor) -> Tensor:
        """Return the agreement of other similarities for each text (n,).

        It is the mean of the overlap (0 to 1) and the rank correlation (−1 to 1).
        """
        order = _ranks(similarity.gather(1, self.near))
        order = order - order.mean(-1, keepdim=True)
        scale = torch.linalg.vector_norm(order, dim=-1) * torch.linalg.vector_norm(self.ranks)
        # where all are equally near there is no order to agree with
        return (self.overlap(similarity) + (order @ self.ranks) / scale.clamp_min(1e-12)) / 2

    def overlap(self, similarity: Tensor) -> Tensor:
        """Return for each text (n,) the share of its nearest that are the reference's.

        Of equal ones at the edge each counts as much.
        """
        count = self.count
        nearest = similarity.topk(min(count + 1, similarity.shape[-1]), dim=-1)
        shared = self.member.gather(1, nearest.indices[:, :count]).float().mean(-1)
        edge = nearest.values[:, count - 1]
        is_tied = nearest.values[:, count:] >= (edge - EQUAL)[:, None]
        rows = is_tied.any(-1).nonzero()[:, 0]
        if len(rows):
            above = similarity[rows] > edge[rows, None] + EQUAL
            tied = (similarity[rows] - edge[rows, None]).abs() <= EQUAL
            share = (count - above.sum(-1)) / tied.sum(-1).clamp_min(1)
            member = self.member[rows]
            shared[rows] = ((member & above).sum(-1) + (member & tied).sum(-1) * share) / count
        return shared


def _ranks(values: Tensor) -> Tensor:
    """Return ranks along the last axis; equal values share theirs.

    A sort would put them into an arbitrary order.
    """
    ordered = values.sort(dim=-1)
    places = torch.arange(values.shape[-1], dtype=values.dtype, device=values.device)
    ranks = torch.empty_like(values).scatter_(-1, ordered.indices, places.expand_as(values))
    is_tied = (ordered.values[:, 1:] - ordered.values[:, :-1]) <= EQUAL
    rows = is_tied.any(-1).nonzero()[:, 0]
    if len(rows):
        difference = values[rows, :, None] - values[rows, None, :]
        smaller = (difference > EQUAL).float().sum(-1)
        equal = (difference.abs() <= EQUAL).float().sum(-1) - 1
        ranks[rows] = smaller + equal / 2
    return ranks
