"""A ridge probe in closed form, cross-validated for all layers at once, and how well it separates
classes.

With n examples a linear probe lives in the n × n matrix of inner products. From the inverse of that
matrix plus the penalty, the predictions for any part that was left out follow without fitting
again, so that repeated cross-validation of thousands of (layer, readout) candidates takes seconds:
docs/decisions/a-probe-in-closed-form.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["stratified_folds"]

OUTER = 3
"""Folds of the rounds that judge a choice: it is made on two thirds of the examples and measured on
the third."""

PENALTIES = (0.01, 0.1, 1.0)
"""In units of the mean squared length of the centered vectors; the choice among them is by
leave-one-out error."""

_EXACT = 160
"""Up to so many examples in double precision. Above, single is enough, since the penalty bounds the
condition, and quicker."""


def stratified_folds(labels: np.ndarray, folds: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Return fold numbers (n,) for each repetition.

    >>> folds = stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3, 1, 0)[0]
    >>> np.bincount(folds).tolist()
    [2, 2, 2]
    """
    rng = np.random.default_rng([seed, len(labels), folds])
    repetitions = []
    for _ in range(repeats):
        # a class goes on where the one before ended, so that folds are of one size
        order = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
        assigned = np.empty(len(labels), dtype=np.int64)
        assigned[np.concatenate(order)] = np.arange(len(labels)) % folds
        repetitions.append(assigned)
    return repetitions


def tested_in_rounds(labels: np.ndarray, repeats: int, seed: int) -> np.ndarray:
    """Return which examples each round leaves out (rounds, n).

    Every example is left out in one round of each repetition.
    """
    splits = stratified_folds(labels, OUTER, repeats, seed)
    return np.stack([folds == fold for folds in splits for fold in range(OUTER)])


def grams(vectors: np.ndarray) -> Tensor:
    """Return inner products (layers, n, n) of centered vectors (layers, n, D).

    They are scaled to a mean of 1 on the diagonal.
    """
    rows = torch.from_numpy(np.ascontiguousarray(vectors))
    dtype = torch.float64 if rows.shape[1] <= _EXACT else torch.float32
    rows = (rows - rows.mean(1, keepdim=True, dtype=torch.float64)).to(dtype)
    product = rows @ rows.transpose(1, 2)
    return product / product.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30)


class Probe:
    """Probes for targets (n, k) on inner products (layers, n, n).

    `weights` say how much each example counts in the fit.
    """

    def __init__(
        self,
        gram: Tensor,
        targets: np.ndarray,
        weights: np.ndarray,
        penalties: Sequence[float] = PENALTIES,
    ) -> None:
        self.goal = torch.from_numpy(targets).to(gram.dtype)
        self.shares = torch.from_numpy(weights).to(gram.dtype)
        # the constant is an intercept that is penalized like any feature
        systems = [gram + 1.0 + torch.diag(penalty / self.shares) for penalty in penalties]
        self._inverses = [
            torch.cholesky_inverse(torch.linalg.cholesky(system)) for system in systems
        ]

    def left_out(self, splits: Sequence[np.ndarray]) -> np.ndarray:
        """Return predictions (splits, layers, n, k) by probes that have not seen an example's fold.

        `splits` are fold numbers.
        """
        best = _best_penalties(self._inverses, self.goal, self.shares)
        return _cross_validate(_take(self._inverses, best), self.goal, splits).numpy()

    def without(
        self, test: np.ndarray, splits: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions by probes that have not seen the labels of some examples.

        The first are cross-validated among the rest (splits, layers, rest, k), whose fold numbers
        `splits` are. The second are of the examples left out (layers, test, k).
        """
        tested = torch.from_numpy(np.flatnonzero(test))
        remaining = torch.from_numpy(np.flatnonzero(~test))
        smaller = []
        predicted = []
        for inverse in self._inverses:
            across = inverse[:, remaining][:, :, tested]
            corner = inverse[:, tested][:, :, tested]
            solved = torch.linalg.solve(corner, across.transpose(1, 2))
            smaller.append(inverse[:, remaining][:, :, remaining] - across @ solved)
            residual = torch.linalg.solve(corner, (inverse @ self.goal)[:, tested])
            predicted.append(self.goal[tested] - residual)
        goal = self.goal[remaining]
        best = _best_penalties(smaller, goal, self.shares[remaining])
        inner = _cross_validate(_take(smaller, best), goal, splits)
        return inner.numpy(), _take(predicted, best).numpy()


def _best_penalties(inverses: Sequence[Tensor], goal: Tensor, shares: Tensor) -> Tensor:
    """Return the number of the penalty with the smallest leave-one-out error for each layer."""
    errors = []
    for inverse in inverses:
        residual = (inverse @ goal) / inverse.diagonal(dim1=1, dim2=2)[..., None]
        errors.append((residual**2 * shares[:, None]).sum((1, 2)))
    return torch.stack(errors).argmin(0)


def _take(matrices: Sequence[Tensor], numbers: Tensor) -> Tensor:
    """Return one of the matrices for each layer."""
    return torch.stack([matrices[int(number)][layer] for layer, number in enumerate(numbers)])


def _cross_validate(inverse: Tensor, goal: Tensor, splits: Sequence[np.ndarray]) -> Tensor:
    """Return predictions (splits, layers, n, k) of examples by probes without their fold.

    Prediction = target − residual, and the residual of a fold is (inverse on that fold)⁻¹ × its
    dual weights.
    """
    dual = inverse @ goal
    predicted = torch.empty((len(splits), *dual.shape), dtype=dual.dtype)
    for split, folds in enumerate(splits):
        for fold in np.unique(folds):
            rows = torch.from_numpy(np.flatnonzero(folds == fold))
            residual = torch.linalg.solve(inverse[:, rows][:, :, rows], dual[:, rows])
            predicted[split][:, rows] = goal[rows] - residual
    return predicted


def separation(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return how well each example is told from other classes (layers, n).

    From predictions (repetitions, layers, n, k): the share of the examples of other classes that
    have less of an example's class than it has itself.
    """
    different = targets[:, None] != targets[None, :]
    count = different.sum(0)
    examples = np.arange(len(targets))
    total = np.zeros(predicted.shape[1:3])
    for repetition in predicted:
        # [l, m, n]: how much example m has of n's class; and how much n has of it
        other_classes = repetition[..., targets]
        own_class = repetition[:, None, examples, targets]
        ahead = ((other_classes < own_class) + 0.5 * (other_classes == own_class)) * different
        total += (ahead.sum(-2) + 0.5 * (count == 0)) / np.maximum(count, 1)
    return total / len(predicted)


class Neighbors:
    """Each example's neighbors by cosine, from inner products (layers, n, n), sorted once for any
    part of the examples."""

    def __init__(self, gram: np.ndarray, targets: np.ndarray) -> None:
        size = np.sqrt(np.maximum(gram.diagonal(axis1=1, axis2=2), 1e-30))
        cosines = (gram / (size[:, :, None] * size[:, None, :])).astype(np.float32)
        self.targets = targets
        self._order = np.argsort(cosines, axis=-1, kind="stable")

    def separation(self, anchors: np.ndarray, among: np.ndarray) -> np.ndarray:
        """Return how well each anchor is told from other classes (layers, anchors).

        It is the share of pairs, one of the anchor's class and one of another, in which the former
        is nearer. The pairs are `among` some examples. An anchor alone in its class has none: it
        takes the others' mean, and so decides nothing.
        """
        order = self._order[:, anchors]
        own_class = np.flatnonzero(anchors)[:, None]
        is_counted = among[order]
        is_alike = self.targets[order] == self.targets[own_class]
        same_class = is_alike & is_counted & (order != own_class)
        other_class = ~is_alike & is_counted
        pairs = same_class.sum(-1) * other_class.sum(-1)
        with np.errstate(invalid="ignore"):
            share = np.where(
                pairs > 0, (np.cumsum(other_class, axis=-1) * same_class).sum(-1) / pairs, np.nan
            )
        is_defined = np.isfinite(share[0])
        if not is_defined.any():
            return np.full_like(share, 0.5)
        return np.where(is_defined, share, share[:, is_defined].mean(-1, keepdims=True))
