"""A ridge probe in closed form, cross-validated for all layers at once.

With n examples a linear probe lives in the n × n matrix of inner products. From the inverse of that matrix plus the penalty,
the predictions for any part that was left out follow without fitting again, so that repeated cross-validation of thousands of
(layer, readout) candidates takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

PENALTIES = (0.01, 0.1, 1.0)
"""In units of the mean squared length of the centred vectors; the choice among them is by leave-one-out error."""


_EXACT = 160
"""Up to so many examples in double precision. Above, single is enough, since the penalty bounds the condition, and quicker."""


def grams(vectors: np.ndarray) -> Tensor:
    """Inner products (layers, n, n) of centred vectors (layers, n, D), scaled to a mean of 1 on the diagonal."""
    held = torch.from_numpy(np.ascontiguousarray(vectors))
    exact = torch.float64 if held.shape[1] <= _EXACT else torch.float32
    held = (held - held.mean(1, keepdim=True, dtype=torch.float64)).to(exact)
    product = held @ held.transpose(1, 2)
    return product / product.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30)


class Probe:
    """Probes for targets (n, k) on inner products (layers, n, n); `weights` say how much each example counts in the fit."""

    def __init__(self, gram: Tensor, targets: np.ndarray, weights: np.ndarray, penalties: Sequence[float] = PENALTIES) -> None:
        self.goal, self.shares = torch.from_numpy(targets).to(gram.dtype), torch.from_numpy(weights).to(gram.dtype)
        # the constant is an intercept that is penalised like any feature
        self._inverses = [_inverse(gram + 1.0 + torch.diag(penalty / self.shares)) for penalty in penalties]

    def left_out(self, splits: Sequence[np.ndarray]) -> np.ndarray:
        """Predictions (splits, layers, n, k), each example's by a probe that has not seen its fold. `splits` are fold numbers."""
        inverse = _chosen(self._inverses, self.goal, self.shares)
        return _cross_validated(inverse, self.goal, splits).numpy()

    def without(self, test: np.ndarray, splits: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """All of the same without some examples, and how those are then predicted.

        Gives the cross-validated predictions among the rest (splits, layers, rest, k), whose fold numbers `splits` are, and the
        predictions (layers, test, k). Nothing of the first has seen a label of `test`.
        """
        out, rest = torch.from_numpy(np.flatnonzero(test)), torch.from_numpy(np.flatnonzero(~test))
        smaller, predicted = [], []
        for inverse in self._inverses:
            across, corner = inverse[:, rest][:, :, out], inverse[:, out][:, :, out]
            smaller.append(inverse[:, rest][:, :, rest] - across @ torch.linalg.solve(corner, across.transpose(1, 2)))
            predicted.append(self.goal[out] - torch.linalg.solve(corner, (inverse @ self.goal)[:, out]))
        goal, shares = self.goal[rest], self.shares[rest]
        best = _best(smaller, goal, shares)
        inner = _cross_validated(_take(smaller, best), goal, splits)
        return inner.numpy(), _take(predicted, best).numpy()


def _inverse(matrix: Tensor) -> Tensor:
    return torch.cholesky_inverse(torch.linalg.cholesky(matrix))


def _best(inverses: Sequence[Tensor], goal: Tensor, shares: Tensor) -> Tensor:
    """Per layer, which of the penalties has the least leave-one-out error."""
    errors = []
    for inverse in inverses:
        residual = (inverse @ goal) / inverse.diagonal(dim1=1, dim2=2)[..., None]
        errors.append((residual**2 * shares[:, None]).sum((1, 2)))
    return torch.stack(errors).argmin(0)


def _take(held: Sequence[Tensor], which: Tensor) -> Tensor:
    return torch.stack([held[int(choice)][layer] for layer, choice in enumerate(which)])


def _chosen(inverses: Sequence[Tensor], goal: Tensor, shares: Tensor) -> Tensor:
    return _take(inverses, _best(inverses, goal, shares))


def _cross_validated(inverse: Tensor, goal: Tensor, splits: Sequence[np.ndarray]) -> Tensor:
    """Prediction = target − residual, and the residual of a part left out is (inverse on that part)⁻¹ × its dual weights."""
    dual = inverse @ goal
    out = torch.empty((len(splits), *dual.shape), dtype=dual.dtype)
    for split, folds in enumerate(splits):
        for fold in np.unique(folds):
            part = torch.from_numpy(np.flatnonzero(folds == fold))
            out[split][:, part] = goal[part] - torch.linalg.solve(inverse[:, part][:, :, part], dual[:, part])
    return out
