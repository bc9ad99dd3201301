"""Attention probing (El-Nouby et al. 2024): a learned query attends over the tokens with several heads, then a linear layer."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from layerscope.probing.heads.base import Head, Parameters


class AttentionHead(Head):
    """Standardised tokens x; per head h: weights softmax(qₕ · Kₕx / √d), the weighted mean of Vₕx; a linear layer on all heads.

    The query is the same for every item, so both projections can be moved out of the sum over tokens without changing the
    function: qₕ · Kₕx = x · (Kₕᵀqₕ), and Σ a Vₕx = Vₕ Σ a x. What is learnt is the vector Kₕᵀqₕ itself, which may be any. A token
    then costs 2 · D · heads products instead of 2 · D², and the mean of the standardisation falls out of the softmax.
    """

    name = "attention"
    summary = "a learned query attends over the tokens, then a linear layer (El-Nouby et al. 2024)"
    pooling = "tokens"

    def start(self, generator: Generator) -> Parameters:
        """At first every token weighs the same; the projections are uniform, as linear layers begin; no biases."""
        bound = 1 / math.sqrt(self.width)

        def uniform(*shape: int) -> Tensor:
            return (torch.rand(*shape, generator=generator) * 2 - 1) * bound

        return {
            "query": torch.zeros(self.heads, self.width),
            "value": uniform(self.heads, self.width, self.width // self.heads),
            "linear": uniform(self.width, self.classes),
        }

    def scores(self, parameters: Parameters, states: Tensor, mask: Tensor | None, mean: Tensor, scale: Tensor) -> Tensor:
        """Class scores (G, B, R, C)."""
        groups, batch, tokens, width = states.shape
        query, heads = parameters["query"], self.heads
        rates, size = query.shape[1], width // heads
        # (G, R·H, D): what each head of each learning rate looks for in a token as it was stored
        wanted = (query / (scale[:, None, None] * math.sqrt(size))).view(groups, rates * heads, width)
        # tokens last: a processor's vectors run along them, where along a handful of heads they would be mostly empty
        found = (wanted @ states.reshape(groups, batch * tokens, width).transpose(1, 2)).view(groups, -1, batch, tokens)
        if mask is not None:
            found = found.masked_fill(~mask.view(1, 1, batch, tokens), -torch.inf)
        weights = torch.softmax(found, dim=-1).transpose(1, 2)
        # layer by layer: states that are read where they lie are not one block of memory, and would be copied into one
        pooled = torch.stack([one @ tokens_of for one, tokens_of in zip(weights, states, strict=True)])  # (G, B, R·H, D)
        pooled = (pooled - mean.view(groups, 1, 1, width)) / scale.view(groups, 1, 1, width)
        # one product per layer, learning rate and head: (B, D) × (D, D / H)
        by_head = pooled.view(groups, batch, rates, heads, width).permute(0, 2, 3, 1, 4)
        read = (by_head @ parameters["value"]).permute(0, 3, 1, 2, 4).reshape(groups, batch, rates, width)
        return (read.transpose(1, 2) @ parameters["linear"]).transpose(1, 2)


HEAD = AttentionHead
