"""Nearest neighbours on pooled vectors: what a layer's geometry says without training anything."""

from __future__ import annotations

import torch
from torch import Tensor

NEIGHBOURS = 20
_ROOM = 2**26  # similarities held at once


def neighbour_ranks(bank: Tensor, labels: Tensor, queries: Tensor, classes: int, k: int = NEIGHBOURS) -> Tensor:
    """Classes in the order of their votes (n, C) for every query.

    The k vectors of the bank with the highest cosine vote for their class; classes with equal votes are ordered by the sum of
    their voters' cosines, then by their number.
    """
    k = min(k, len(bank))
    unit = torch.nn.functional.normalize(bank.float(), dim=-1).T.contiguous()
    rows = max(1, _ROOM // len(bank))
    found = []
    for start in range(0, len(queries), rows):
        asked = torch.nn.functional.normalize(queries[start : start + rows].float(), dim=-1)
        near = (asked @ unit).topk(k, dim=-1)
        votes = torch.zeros(len(asked), classes, dtype=torch.float64, device=bank.device)
        voted = labels[near.indices]
        # a cosine is at most 1: a thousandth of their mean cannot outweigh a vote
        weight = 1 + near.values.double() / (1000 * k)
        votes.scatter_add_(1, voted, weight)
        found.append(votes.argsort(dim=-1, descending=True, stable=True))
    return torch.cat(found)
