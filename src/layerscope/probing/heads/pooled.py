"""What the linear probes share: one standardised vector per item, then a linear layer with a bias."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from layerscope.probing.heads.base import Head, Parameters


class PooledHead(Head):
    """A linear layer on one vector per item; begins at zero, so that no layer is lucky."""

    def start(self, generator: Generator) -> Parameters:
        """Zeros: the problem is convex."""
        return {"linear": torch.zeros(self.width, self.classes), "bias": torch.zeros(self.classes)}

    def scores(self, parameters: Parameters, states: Tensor, mask: Tensor | None, mean: Tensor, scale: Tensor) -> Tensor:
        """Class scores (G, B, R, C)."""
        vectors = (states[:, :, 0] - mean.unsqueeze(1)) / scale.unsqueeze(1)
        return (vectors.unsqueeze(1) @ parameters["linear"] + parameters["bias"].unsqueeze(2)).transpose(1, 2)
