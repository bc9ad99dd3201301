"""A ridge probe in closed form, cross-validated for all layers at once, and how well it separates
classes.

With n examples a linear probe lives in the n × n matrix of inner products. From the inverse of that
matrix plus the penalty, the predictions for any part that was left out follow without fitting
again, so that repeated cross-validation of thousands of (layer, readout) candidates takes seconds.
scikit-learn fits one probe at a time and is not a dependency of the core: why this is kept by hand
is in docs/decisions/a-probe-in-closed-form.md.
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


def stratified_folds(labels: np.ndarray, folds: int, repeats: int, seed: int) -> list[np.ndarray]:
    """Return fold numbers (n,) for each repetition.

    >>> [int((fold == k).sum()) for fold in stratified_folds(np.array([0, 0, 0, 1, 1, 1]), 3, 1, 0) for k in range(3)]
    [2, 2, 2]
    """
    rng = np.random.default_rng([seed, len(labels), folds])
    out = []
    for _ in range(repeats):
        assigned = np.empty(len(labels), dtype=np.int64)
        start = 0
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            assigned[members] = (start + np.arange(len(members))) % folds
            start += len(
                members
            )  # the next class goes on where this one ended, so that folds are of one size
        out.append(assigned)
    return out


def tested_in_rounds(labels: np.ndarray, repeats: int, seed: int) -> np.ndarray:
    """Return which examples each round leaves out (rounds, n).

    Every example is left out in one round of each repetition.
    """
    splits = stratified_folds(labels, OUTER, repeats, seed)
    return np.stack([folds == fold for folds in splits for fold in range(OUTER)])


PENALTIES = (0.01, 0.1, 1.0)
"""In units of the mean squared length of the centered vectors; the choice among them is by
leave-one-out error."""


_EXACT = 160
"""Up to so many examples in double precision. Above, single is enough, since the penalty bounds the
condition, and quicker."""


def grams(vectors: np.ndarray) -> Tensor:
    """Return inner products (layers, n, n) of centered vectors (layers, n, D).

    They are scaled to a mean of 1 on the diagonal.
    """
    rows = torch.from_numpy(np.ascontiguousarray(vectors))
    exact = torch.float64 if rows.shape[1] <= _EXACT else torch.float32
    rows = (rows - rows.mean(1, keepdim=True, dtype=torch.float64)).to(exact)
    product = rows @ rows.transpose(1, 2)
    return product / product.diagonal(dim1=1, dim2=2).mean(1)[:, None, None].clamp_min(1e-30)


class Probe:
    """Probes for targets (n, k) on inner products (layers, n, n); `weights` say how much each
    example counts in the fit."""

    def __init__(
        self,
        gram: Tensor,
        targets: np.ndarray,
        weights: np.ndarray,
        penalties: Sequence[float] = PENALTIES,
    ) -> None:
        self.goal, self.shares = (
            torch.from_numpy(targets).to(gram.dtype),
            torch.from_numpy(weights).to(gram.dtype),
        )
        # the constant is an intercept that is penalized like any feature
        systems = [gram + 1.0 + torch.diag(penalty / self.shares) for penalty in penalties]
        self._inverses = [
            torch.cholesky_inverse(torch.linalg.cholesky(system)) for system in systems
        ]

    def left_out(self, splits: Sequence[np.ndarray]) -> np.ndarray:
        """Return predictions (splits, layers, n, k) by probes that have not seen an example's fold.

        `splits` are fold numbers.
        """
        inverse = _chosen(self._inverses, self.goal, self.shares)
        return _cross_validated(inverse, self.goal, splits).numpy()

    def without(
        self, test: np.ndarray, splits: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """All of the same without some examples, and how those are then predicted.

        Gives the cross-validated predictions among the rest (splits, layers, rest, k), whose fold
        numbers `splits` are, and the predictions (layers, test, k). Nothing of the first has seen a
        label of `test`.
        """
        out, rest = torch.from_numpy(np.flatnonzero(test)), torch.from_numpy(np.flatnonzero(~test))
        smaller, predicted = [], []
        for inverse in self._inverses:
            across, corner = inverse[:, rest][:, :, out], inverse[:, out][:, :, out]
            smaller.append(
                inverse[:, rest][:, :, rest]
                - across @ torch.linalg.solve(corner, across.transpose(1, 2))
            )
            predicted.append(
                self.goal[out] - torch.linalg.solve(corner, (inverse @ self.goal)[:, out])
            )
        goal, shares = self.goal[rest], self.shares[rest]
        best = _best(smaller, goal, shares)
        inner = _cross_validated(_take(smaller, best), goal, splits)
        return inner.numpy(), _take(predicted, best).numpy()


def _best(inverses: Sequence[Tensor], goal: Tensor, shares: Tensor) -> Tensor:
    """Return the penalty with the smallest leave-one-out error for each layer."""
    errors = []
    for inverse in inverses:
        residual = (inverse @ goal) / inverse.diagonal(dim1=1, dim2=2)[..., None]
        errors.append((residual**2 * shares[:, None]).sum((1, 2)))
    return torch.stack(errors).argmin(0)


def _take(matrices: Sequence[Tensor], which: Tensor) -> Tensor:
    return torch.stack([matrices[int(choice)][layer] for layer, choice in enumerate(which)])


def _chosen(inverses: Sequence[Tensor], goal: Tensor, shares: Tensor) -> Tensor:
    return _take(inverses, _best(inverses, goal, shares))


def _cross_validated(inverse: Tensor, goal: Tensor, splits: Sequence[np.ndarray]) -> Tensor:
    """Prediction = target − residual, and the residual of a part left out is (inverse on that
    part)⁻¹ × its dual weights."""
    dual = inverse @ goal
    out = torch.empty((len(splits), *dual.shape), dtype=dual.dtype)
    for split, folds in enumerate(splits):
        for fold in np.unique(folds):
            part = torch.from_numpy(np.flatnonzero(folds == fold))
            out[split][:, part] = goal[part] - torch.linalg.solve(
                inverse[:, part][:, :, part], dual[:, part]
            )
    return out


def separation(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(layers, n) from predictions (repetitions, layers, n, k): the share of the examples of other
    classes that have less of an example's class than it has itself."""
    different = targets[:, None] != targets[None, :]
    count, total = different.sum(0), np.zeros(predicted.shape[1:3])
    for repetition in predicted:
        own = np.take_along_axis(
            repetition, np.broadcast_to(targets[:, None], (*repetition.shape[:-1], 1)), -1
        )
        others, mine = (
            repetition[..., targets],
            own.swapaxes(-1, -2),
        )  # [l, m, n]: what m has of n's class; what n has of it
        ahead = ((others < mine) + 0.5 * (others == mine)) * different
        total += (ahead.sum(-2) + 0.5 * (count == 0)) / np.maximum(count, 1)
    return total / len(predicted)


class Neighbors:
    """Each example's neighbors by cosine, from inner products (layers, n, n), sorted once for any
    part of the examples."""

    def __init__(self, gram: np.ndarray, targets: np.ndarray) -> None:
        size = np.sqrt(np.maximum(gram.diagonal(axis1=1, axis2=2), 1e-30))
        cosines = (gram / (size[:, :, None] * size[:, None, :])).astype(np.float32)
        self.targets, self._order = targets, np.argsort(cosines, axis=-1, kind="stable")

    def separation(self, anchors: np.ndarray, among: np.ndarray) -> np.ndarray:
        """(layers, anchors): the share of pairs, one of the anchor's class and one of another, in
        which the former is nearer.

        The pairs are `among` some examples. An anchor alone in its class has none: it takes the
        others' mean, and so decides nothing.
        """
        order, own = self._order[:, anchors], np.flatnonzero(anchors)[:, None]
        counted, alike = among[order], self.targets[order] == self.targets[own]
        same, other = alike & counted & (order != own), ~alike & counted
        pairs = same.sum(-1) * other.sum(-1)
        with np.errstate(invalid="ignore"):
            share = np.where(pairs > 0, (np.cumsum(other, axis=-1) * same).sum(-1) / pairs, np.nan)
        known = np.isfinite(share[0])
        mean = (
            share[:, known].mean(-1, keepdims=True)
            if known.any()
            else np.full((len(share), 1), 0.5)
        )
        return np.where(known, share, mean)
