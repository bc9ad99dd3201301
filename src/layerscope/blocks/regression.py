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

    def __init__(self, features: int, outputs: int, device: torch.device) -> None:
        wide = {"dtype": torch.float64, "device": device}
        self.gram = torch.zeros(features, features, **wide)  # type: ignore[call-overload]
        self.cross = torch.zeros(features, outputs, **wide)  # type: ignore[call-overload]
        self.square = torch.zeros((), **wide)  # type: ignore[call-overload]

    def add(self, features: Tensor, targets: Tensor) -> None:
        self.gram += features.T @ features
        self.cross += features.T @ targets
        self.square += targets.double().square().sum()

    def error(self, weights: Tensor) -> float:
        """Return the squared error of weights (features, D)."""
        explained = (weights * (self.gram @ weights - 2 * self.cross)).sum()
        return float(self.square + explained)


class Ridge:
    """Fits `features · scale → targets` with an offset that is not penalized.

    Tokens are added as they come, those of held-out texts apart; `solve` chooses the penalty on
    them and then fits on all. Without an offset (`offset=False`) the linear layer has no bias.
    """

    def __init__(self, features: int, outputs: int, offset: bool, device: torch.device) -> None:
        self.offset = offset
        self.fitted = _Sums(features + offset, outputs, device)
        self.held_out = _Sums(features + offset, outputs, device)

    def add(self, features: Tensor, scale: Tensor, targets: Tensor, held_out: Tensor) -> None:
        """Add tokens: features (tokens, F), scale (tokens,), targets (tokens, D)."""
        rows = features.float() * scale[:, None].float()
        if self.offset:
            rows = torch.cat([rows, scale[:, None].float()], dim=1)
        for sums, which in ((self.fitted, ~held_out), (self.held_out, held_out)):
            sums.add(rows[which], targets[which].float())

    def solve(self, penalties: tuple[float, ...] = LAMBDAS) -> Solution | None:
        """Return the best correction, or None if none helps on the held-out tokens."""
        before = float(self.held_out.square)
        if not float(self.fitted.gram.diagonal().sum()) > 0:
            return None  # a block whose layer is given nothing but zeros
        trials = [(self.held_out.error(self._weights(self.fitted, one)), one) for one in penalties]
        error, penalty = min(trials)
        if not error < before:
            return None
        whole = _Sums(len(self.fitted.gram), self.fitted.cross.shape[1], self.fitted.gram.device)
        whole.gram = self.fitted.gram + self.held_out.gram
        whole.cross = self.fitted.cross + self.held_out.cross
        weights = self._weights(whole, penalty)
        bias = weights[-1] if self.offset else torch.zeros_like(weights[0])
        weight = weights[:-1] if self.offset else weights
        return Solution(weight, bias, penalty, error / before)

    def _weights(self, sums: _Sums, penalty: float) -> Tensor:
        count = len(sums.gram) - self.offset
        diagonal = sums.gram.diagonal()
        added = torch.zeros_like(diagonal)
        added[:count] = penalty * diagonal[:count].mean()
        if self.offset:
            added[-1] = 1e-9 * diagonal[-1]
        factor = torch.linalg.cholesky(sums.gram + torch.diag(added))
        return torch.cholesky_solve(sums.cross, factor)
