"""Ridge regression over many tokens: sums of products, added up in chunks in float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LAMBDAS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Penalties to try, as shares of the mean squared feature."""


@dataclass(frozen=True)
class Solution:
    """A correction (features, D) and its offset (D,), the penalty, and the share of the squared
    error on held-out tokens that is left."""

    weight: Tensor
    bias: Tensor
    penalty: float
    remaining: float


class _Sums:
    """Products of features and targets, summed over tokens."""

    def __init__(self, gram: Tensor, cross: Tensor, square: Tensor) -> None:
        self.gram = gram
        self.cross = cross
        self.square = square

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add tokens: features (tokens, F) and targets (tokens, D)."""
        self.gram += features.T @ features
        self.cross += features.T @ targets
        self.square += targets.double().square().sum()

    def error(self, weights: Tensor) -> float:
        """Return the squared error of weights (features, D)."""
        explained = (weights * (self.gram @ weights - 2 * self.cross)).sum()
        return float(self.square + explained)


class Ridge:
    """A fit of `features · scale → targets` with an offset that is not penalized.

    Tokens are added as they come, those of held-out texts apart; `solve` chooses the penalty on
    them and then fits on all. Without an offset (`offset=False`) the linear layer has no bias.
    """

    def __init__(self, features: int, outputs: int, offset: bool, device: torch.device) -> None:
        self.offset = offset

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        width = features + offset
        self.fitted = _Sums(zeros(width, width), zeros(width, outputs), zeros())
        self.held_out = _Sums(zeros(width, width), zeros(width, outputs), zeros())

    def add(self, features: Tensor, scale: Tensor, targets: Tensor, held_out: Tensor) -> None:
        """Add tokens: features (tokens, F), scale (tokens,), targets (tokens, D)."""
        rows = features.float() * scale[:, None].float()
        if self.offset:
            rows = torch.cat([rows, scale[:, None].float()], dim=1)
        for sums, mask in ((self.fitted, ~held_out), (self.held_out, held_out)):
            sums.add(rows[mask], targets[mask].float())

    def solve(self, penalties: tuple[float, ...] = LAMBDAS) -> Solution | None:
        """Return the best correction, or None if none helps on the held-out tokens."""
        fitted = self.fitted
        held_out = self.held_out
        before = float(held_out.square)
        if not float(fitted.gram.diagonal().sum()) > 0:
            return None  # a block whose layer is given nothing but zeros
        errors = [
            (held_out.error(self._weights(fitted.gram, fitted.cross, penalty)), penalty)
            for penalty in penalties
        ]
        error, penalty = min(errors)
        if not error < before:
            return None
        gram = fitted.gram + held_out.gram
        cross = fitted.cross + held_out.cross
        weights = self._weights(gram, cross, penalty)
        if not self.offset:
            return Solution(weights, torch.zeros_like(weights[0]), penalty, error / before)
        return Solution(weights[:-1], weights[-1], penalty, error / before)

    def _weights(self, gram: Tensor, cross: Tensor, penalty: float) -> Tensor:
        count = len(gram) - self.offset
        diagonal = gram.diagonal()
        added = 1e-9 * diagonal
        added[:count] = penalty * diagonal[:count].mean()
        factor = torch.linalg.cholesky(gram + torch.diag(added))
        return torch.cholesky_solve(cross, factor)
