"""Kinds of probes: heads that are trained on frozen states, and nearest neighbors, which train
nothing.

Every layer and every learning rate has parameters of its own, with leading dimensions (layers,
learning rates); one set of matrix products runs them all. Layers share no parameter and no
statistic, so the gradient of one never reaches another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

Parameters = dict[str, Tensor]


class StateBatch(NamedTuple):
    """States (G, B, N, D) of some layers, and which tokens exist (B, N), None if all do.

    `mean` and `scale` (G, D) standardize the states: a batch norm without weights of its own, whose
    statistics are those of the whole training split.
    """

    states: Tensor
    mask: Tensor | None
    mean: Tensor
    scale: Tensor


class Head(ABC):
    """One kind of trained probe. A new kind is a subclass in `HEADS`."""

    name: ClassVar[str]
    summary: ClassVar[str]
    pooling: ClassVar[str]
    """What of an item's states it reads: `tokens`, or one vector: `mean` or `summary` (the class
    token where there is one)."""

    def __init__(self, width: int, heads: int, classes: int) -> None:
        self.width = width
        self.heads = heads
        self.classes = classes

    @abstractmethod
    def start(self, generator: Generator) -> Parameters:
        """Return the parameters of one probe at the start; every layer and learning rate begins with the
        same ones."""

    @abstractmethod
    def scores(self, parameters: Parameters, batch: StateBatch) -> Tensor:
        """Return class scores (G, B, R, C) of states under parameters (G, R, …)."""


class PooledHead(Head):
    """A linear layer on one vector per item; begins at zero, so that no layer is lucky."""

    def start(self, generator: Generator) -> Parameters:
        """Return zeros: the problem is convex."""
        return {"linear": torch.zeros(self.width, self.classes), "bias": torch.zeros(self.classes)}

    def scores(self, parameters: Parameters, batch: StateBatch) -> Tensor:
        """Return class scores (G, B, R, C)."""
        vectors = (batch.states[:, :, 0] - batch.mean.unsqueeze(1)) / batch.scale.unsqueeze(1)
        return (
            vectors.unsqueeze(1) @ parameters["linear"] + parameters["bias"].unsqueeze(2)
        ).transpose(1, 2)


class LinearHead(PooledHead):
    """The class token where the family has one, else the mean over tokens; then a linear layer."""

    name = "linear"
    summary = "the class token (or the mean over tokens where there is none), then a linear layer"
    pooling = "summary"


class MeanHead(PooledHead):
    """The mean over tokens, then a linear layer."""

    name = "mean"
    summary = "the mean over the patches (or the text's tokens), then a linear layer"
    pooling = "mean"


class AttentionHead(Head):
    """Standardized tokens x; per head h: weights softmax(qₕ · Kₕx / √d), the weighted mean of Vₕx;
    a linear layer on all heads.

    The query is the same for every item, so both projections can be moved out of the sum over
    tokens without changing the function: qₕ · Kₕx = x · (Kₕᵀqₕ), and Σ a Vₕx = Vₕ Σ a x. What is
    learned is the vector Kₕᵀqₕ itself, which may be any. A token then costs 2 · D · heads products
    instead of 2 · D², and the mean of the standardization falls out of the softmax.
    """

    name = "attention"
    summary = "a learned query attends over the tokens, then a linear layer (El-Nouby et al. 2024)"
    pooling = "tokens"

    def start(self, generator: Generator) -> Parameters:
        """Return parameters under which every token weighs the same; the projections are uniform, as linear layers
        begin; no biases."""
        bound = 1 / math.sqrt(self.width)

        def uniform(*shape: int) -> Tensor:
            return (torch.rand(*shape, generator=generator) * 2 - 1) * bound

        return {
            "query": torch.zeros(self.heads, self.width),
            "value": uniform(self.heads, self.width, self.width // self.heads),
            "linear": uniform(self.width, self.classes),
        }

    def scores(self, parameters: Parameters, batch: StateBatch) -> Tensor:
        """Return class scores (G, B, R, C)."""
        states, mask, mean, scale = batch
        groups, items, tokens, width = states.shape
        query = parameters["query"]
        heads = self.heads
        rates = query.shape[1]
        size = width // heads
        # (G, R·H, D): what each head of each learning rate looks for in a token as it was stored
        directions = (query / (scale[:, None, None] * math.sqrt(size))).view(
            groups, rates * heads, width
        )
        # tokens last: a processor's vectors run along them, where along a handful of heads they
        # would be mostly empty
        logits = (directions @ states.reshape(groups, items * tokens, width).transpose(1, 2)).view(
            groups, -1, items, tokens
        )
        if mask is not None:
            logits = logits.masked_fill(~mask.view(1, 1, items, tokens), -torch.inf)
        weights = torch.softmax(logits, dim=-1).transpose(1, 2)
        # layer by layer: states that are read where they lie are not one block of memory, and would
        # be copied into one
        pooled = torch.stack(
            [shares @ of_layer for shares, of_layer in zip(weights, states, strict=True)]
        )  # (G, B, R·H, D)
        pooled = (pooled - mean.view(groups, 1, 1, width)) / scale.view(groups, 1, 1, width)
        # one product per layer, learning rate and head: (B, D) × (D, D / H)
        by_head = pooled.view(groups, items, rates, heads, width).permute(0, 2, 3, 1, 4)
        read = (
            (by_head @ parameters["value"])
            .permute(0, 3, 1, 2, 4)
            .reshape(groups, items, rates, width)
        )
        return (read.transpose(1, 2) @ parameters["linear"]).transpose(1, 2)


HEADS: dict[str, type[Head]] = {head.name: head for head in (AttentionHead, LinearHead, MeanHead)}

NEIGHBORS = 20
_ROOM = 2**26  # similarities held at once


def neighbor_ranks(
    bank: Tensor, labels: Tensor, queries: Tensor, classes: int, k: int = NEIGHBORS
) -> Tensor:
    """Return classes in the order of their votes (n, C) for every query.

    The k vectors of the bank with the highest cosine vote for their class; classes with equal votes
    are ordered by the sum of their voters' cosines, then by their number.
    """
    k = min(k, len(bank))
    unit = torch.nn.functional.normalize(bank.float(), dim=-1).T.contiguous()
    rows = max(1, _ROOM // len(bank))
    ranks = []
    for start in range(0, len(queries), rows):
        vectors = torch.nn.functional.normalize(queries[start : start + rows].float(), dim=-1)
        near = (vectors @ unit).topk(k, dim=-1)
        votes = torch.zeros(len(vectors), classes, dtype=torch.float64, device=bank.device)
        voted = labels[near.indices]
        # a cosine is at most 1: a thousandth of their mean cannot outweigh a vote
        weight = 1 + near.values.double() / (1000 * k)
        votes.scatter_add_(1, voted, weight)
        ranks.append(votes.argsort(dim=-1, descending=True, stable=True))
    return torch.cat(ranks)
