"""Agreement with an encoder: do the texts have the same neighbors, in the same order?

For every text two things are compared with a reference encoder: which texts are its 10 nearest (the overlap), and in which
order the reference's 50 nearest lie (a rank correlation). Their mean is what the text contributes to the score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from layerscope.selection.judges.base import Candidates, Judgment, judgment_of_items

NEIGHBORS = 10
NEAR = 50


def similarities(vectors: np.ndarray | Tensor) -> Tensor:
    """Cosines (n, n) of vectors (n, D), on a GPU where there is one; −inf on the diagonal: no text is its own neighbor."""
    rows = torch.as_tensor(vectors, dtype=torch.float32)
    if torch.cuda.is_available():
        rows = rows.cuda()
    rows = torch.nn.functional.normalize(rows, dim=-1)
    product = rows @ rows.T
    return product.fill_diagonal_(-torch.inf)


@dataclass(frozen=True)
class Neighborhoods:
    """What a reference says of texts: who is near to whom. Made from similarities (n, n) with −inf on the diagonal."""

    member: Tensor
    near: Tensor
    ranks: Tensor
    count: int

    @classmethod
    def of(cls, similarity: Tensor, neighbors: int = NEIGHBORS, near: int = NEAR) -> Neighborhoods:
        """From similarities; of few texts at most half are near."""
        n = len(similarity)
        count, wide = max(1, min(neighbors, (n - 1) // 2)), max(2, min(near, (n - 1) // 2))
        nearest = similarity.topk(max(count, wide), dim=-1).indices
        member = torch.zeros((n, n), dtype=torch.bool, device=similarity.device)
        member.scatter_(1, nearest[:, :count], True)
        ranks = torch.arange(wide, 0, -1, dtype=torch.float32, device=similarity.device)
        return cls(member, nearest[:, :wide], ranks - ranks.mean(), count)

    def agreement(self, similarity: Tensor) -> Tensor:
        """Per text (n,): the mean of the overlap (0 to 1) and the rank correlation (−1 to 1) with other similarities."""
        found = similarity.topk(self.count, dim=-1).indices
        overlap = self.member.gather(1, found).float().mean(-1)
        order = similarity.gather(1, self.near).argsort(-1).argsort(-1).float()
        order = order - order.mean(-1, keepdim=True)
        scale = torch.linalg.vector_norm(order, dim=-1) * torch.linalg.vector_norm(self.ranks)
        return (overlap + (order @ self.ranks) / scale) / 2


def agreement_items(
    reference: Neighborhoods, candidates: Candidates, advance: Callable[[int], None] = lambda n: None
) -> np.ndarray:
    """What each text contributes (readouts, layers, texts); NaN where a candidate is undefined."""
    rows = []
    for readout in candidates.readouts:
        vectors = candidates.vectors(readout)
        rows.append(np.stack([_of_layer(reference, layer) for layer in vectors]))
        advance(1)
    return np.stack(rows)


def _of_layer(reference: Neighborhoods, vectors: np.ndarray | Tensor) -> np.ndarray:
    if not bool(torch.isfinite(torch.as_tensor(vectors)).all()):
        return np.full(len(vectors), np.nan)
    return reference.agreement(similarities(vectors)).cpu().numpy()


class Agreement:
    """Agreement with the vectors (texts, D) of an encoder that is trusted, or with given similarities."""

    name = "agreement"
    summary = "overlap of the 10 nearest neighbors with a trusted encoder's, and their order"
    views: tuple[str, ...] = ()

    def __init__(self, reference: np.ndarray | Tensor, who: str = "the encoder") -> None:
        self.who = who
        given = torch.as_tensor(reference)
        self.reference = Neighborhoods.of(similarities(given))

    def judge(self, candidates: Candidates, *, seed: int = 0, advance: Callable[[int], None] = lambda n: None) -> Judgment:
        """The mean agreement over the texts."""
        items = agreement_items(self.reference, candidates, advance)
        return judgment_of_items(self.name, items, seed, with_encoder=self.who, neighbors=self.reference.count)
