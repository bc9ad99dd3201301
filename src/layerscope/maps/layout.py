"""Points in two dimensions from vectors at every layer: principal components, each layer
turned so that points move and do not jump.

Everything goes by the angle between vectors, as the rest of layerscope does: rows are scaled to
length 1, so that their distances rank as their cosines do. All of it is deterministic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import orthogonal_procrustes

from layerscope.core.heads import unit

NEIGHBORS = 10
"""So many nearest neighbors are kept of each text."""
MOST = 2000
"""So many texts are on a map."""
LEAST = 12
"""Of fewer a map says nothing."""


@dataclass(frozen=True)
class Layout:
    """One way to read the texts, laid out at some layers.

    - `points` (layers, texts, 2): centered, at root-mean-square distance 1; zeros at a layer where
      all texts have one vector.
    - `near` (layers, texts, neighbors): the nearest texts by cosine, the nearest first.
    - `trust` (layers,): trustworthiness of the points, as scikit-learn computes it from cosine
      distances; NaN where undefined.
    - `kept` (layers,): the share of true neighbors that are also among the nearest points.
    - `changed` (layers,): the share of neighbors that are other ones than at the layer before; NaN
      at the first.
    """

    layers: list[int]
    points: np.ndarray
    near: np.ndarray
    trust: np.ndarray
    kept: np.ndarray
    changed: np.ndarray


def lay_out(
    vectors: Iterable[np.ndarray],
    layers: Sequence[int],
    start: Layout | None = None,
) -> Layout:
    """Lay out vectors (texts, D), given layer by layer. `start` is another reading of the same
    texts, to be turned like."""
    points, near, trust, kept = [], [], [], []
    before = None
    for layer, given in zip(layers, vectors, strict=True):
        rows = unit(np.asarray(given, dtype=np.float64))
        rows -= rows.mean(0)
        size = min(NEIGHBORS, len(rows) - 1)
        if (
            not np.isfinite(rows).all() or np.abs(rows).max() < 1e-6
        ):  # all texts have the same vector, or none has one
            points.append(np.zeros((len(rows), 2)))
            near.append(np.zeros((len(rows), size), dtype=np.int64))
            trust.append(np.nan)
            kept.append(np.nan)
            continue
        if before is None and start is not None and layer in start.layers:
            before = start.points[start.layers.index(layer)]
        far, now = _distances(rows), principal(rows)
        before = now = turned(now, before)
        found, seen = nearest(far, size), nearest(_distances(now), size)
        points.append(now)
        near.append(found)
        trust.append(trustworthiness(far, seen))
        kept.append(float(same_share(found, seen).mean()))
    defined = [not np.isnan(value) for value in trust]
    changed = [np.nan] + [
        1 - float(same_share(near[i - 1], near[i]).mean())
        if defined[i - 1] and defined[i]
        else np.nan
        for i in range(1, len(near))
    ]
    return Layout(
        list(layers),
        np.stack(points),
        np.stack(near),
        np.array(trust),
        np.array(kept),
        np.array(changed),
    )


def principal(rows: np.ndarray) -> np.ndarray:
    """The first two principal components (n, 2) of centered rows, at root-mean-square distance 1.

    Of each component the largest number is positive: a sign of its own would depend on the library.
    """
    if rows.shape[0] < rows.shape[1]:
        values, directions = np.linalg.eigh(rows @ rows.T)
        points = directions[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))
    else:
        points = rows @ np.linalg.eigh(rows.T @ rows)[1][:, :-3:-1]
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    points = points * np.where(points[np.abs(points).argmax(0), [0, 1]] < 0, -1, 1)
    return points / max(1e-30, float(np.sqrt((points**2).sum(1).mean())))


def turned(points: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Points rotated and mirrored to lie as near as possible to others (orthogonal Procrustes)."""
    if before is None:
        return points
    turn: np.ndarray = orthogonal_procrustes(points, before)[0]
    return points @ turn


def nearest(distances: np.ndarray, count: int) -> np.ndarray:
    """The nearest others (n, count) by a table of distances, the nearest first."""
    apart = distances.copy()
    np.fill_diagonal(apart, np.inf)
    some = np.sort(
        np.argpartition(apart, count - 1, axis=1)[:, :count], axis=1
    )  # of equal ones the first
    return np.take_along_axis(
        some, np.argsort(np.take_along_axis(apart, some, 1), axis=1, kind="stable"), 1
    )


def trustworthiness(distances: np.ndarray, seen: np.ndarray) -> float:
    """From 1 (all neighbors on the map are true ones) down: `distances` (n, n) are true, `seen` (n,
    k) the nearest on the map.

    Every neighbor on the map that is not among the k true ones costs the number of places it is
    behind them. Only the ranks of those few are counted, which is much faster than sorting all.
    """
    n, k = len(distances), min(seen.shape[1], (len(distances) - 1) // 2)
    apart = distances.copy()
    np.fill_diagonal(apart, np.inf)
    cost = 0
    for place in range(k):
        its = np.take_along_axis(apart, seen[:, place : place + 1], 1)
        cost += int(np.maximum(0, (apart < its).sum(1) + 1 - k).sum())
    return 1 - 2 * cost / (n * k * (2 * n - 3 * k - 1))


def same_share(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each text (n,): which share of its neighbors (n, k) is among its others."""
    return (some[:, :, None] == others[:, None, :]).any(2).mean(1)


def _distances(rows: np.ndarray) -> np.ndarray:
    """Squared distances (n, n)."""
    size = (rows**2).sum(1)
    return size[:, None] + size[None] - 2 * rows @ rows.T
