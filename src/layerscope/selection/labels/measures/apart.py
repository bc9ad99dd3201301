"""How surely examples are told from those of other classes: areas under ROC curves, which tell more than right and wrong."""

from __future__ import annotations

import numpy as np


def told_apart(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(layers, n) from predictions (repetitions, layers, n, k): the share of the examples of other classes that have less of an
    example's class than it has itself."""
    different = targets[:, None] != targets[None, :]
    count, total = different.sum(0), np.zeros(predicted.shape[1:3])
    for repetition in predicted:
        own = np.take_along_axis(repetition, np.broadcast_to(targets[:, None], (*repetition.shape[:-1], 1)), -1)
        others, mine = repetition[..., targets], own.swapaxes(-1, -2)  # [l, m, n]: what m has of n's class; what n has of it
        ahead = ((others < mine) + 0.5 * (others == mine)) * different
        total += (ahead.sum(-2) + 0.5 * (count == 0)) / np.maximum(count, 1)
    return total / len(predicted)


class Neighbours:
    """Each example's neighbours by cosine, from inner products (layers, n, n), sorted once for any part of the examples."""

    def __init__(self, gram: np.ndarray, targets: np.ndarray) -> None:
        size = np.sqrt(np.maximum(gram.diagonal(axis1=1, axis2=2), 1e-30))
        cosines = (gram / (size[:, :, None] * size[:, None, :])).astype(np.float32)
        self.targets, self._order = targets, np.argsort(cosines, axis=-1, kind="stable")

    def told_apart(self, anchors: np.ndarray, among: np.ndarray) -> np.ndarray:
        """(layers, anchors): the share of pairs, one of the anchor's class and one of another, in which the former is nearer.

        The pairs are `among` some examples. An anchor alone in its class has none: it takes the others' mean, and so decides
        nothing.
        """
        order, own = self._order[:, anchors], np.flatnonzero(anchors)[:, None]
        counted, alike = among[order], self.targets[order] == self.targets[own]
        same, other = alike & counted & (order != own), ~alike & counted
        pairs = same.sum(-1) * other.sum(-1)
        with np.errstate(invalid="ignore"):
            share = np.where(pairs > 0, (np.cumsum(other, axis=-1) * same).sum(-1) / pairs, np.nan)
        known = np.isfinite(share[0])
        mean = share[:, known].mean(-1, keepdims=True) if known.any() else np.full((len(share), 1), 0.5)
        return np.where(known, share, mean)
