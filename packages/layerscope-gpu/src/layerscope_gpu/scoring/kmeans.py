"""V-measures of scikit-learn's mini-batch k-means, as mteb runs it, on one set of texts after the
other.

All layers of a set run together. Each uses the random numbers that scikit-learn would draw for it:
first centers, batches and restarts of small clusters are the same draws of the same generator. The
set's mean is subtracted from vectors first, which keeps distances and loses fewer digits.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# defaults of scikit-learn's MiniBatchKMeans
_MAX_ITER = 100
_NO_IMPROVEMENT = 10
_REASSIGN = 0.01


@dataclass(frozen=True)
class Clustering:
    """Sets of texts (numbers of rows), their labels from 0, and the number of clusters of each.

    A set with one cluster has the V-measure 1.
    """

    sets: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]
    clusters: tuple[int, ...]
    batch: int
    seed: int


def cluster(vectors: Tensor, problem: Clustering, *, memory: int = 2**28) -> np.ndarray:
    """Return V-measures (layers, sets) of vectors (layers, texts, D)."""
    out = np.ones((len(vectors), len(problem.sets)))
    for column, (rows, gold, count) in enumerate(
        zip(problem.sets, problem.labels, problem.clusters, strict=True)
    ):
        if count == 1:
            continue
        chosen = torch.as_tensor(rows, device=vectors.device)
        at_once = max(1, memory // (8 * len(rows) * vectors.shape[2]))
        for start in range(0, len(vectors), at_once):
            x = vectors[start : start + at_once, chosen]
            x = x - x.mean(1, keepdim=True, dtype=torch.float64).float()
            labels = assign(x, count, problem.batch, problem.seed)
            out[start : start + at_once, column] = v_measures(labels, gold)
    return out


def assign(x: Tensor, clusters: int, batch: int, seed: int) -> Tensor:
    """Return the cluster (layers, n) of each of the vectors (layers, n, D)."""

    def on_device(values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=x.device)

    layers, n, _ = x.shape
    batch = min(batch, n)
    weights = np.full(n, 1 / n, dtype=np.float32)
    random = np.random.RandomState(seed)
    start_size = min(n, 3 * batch if 3 * batch >= clusters else 3 * clusters)
    random.randint(0, n, start_size)  # scikit-learn's set for comparing several starts
    rows = random.randint(0, n, start_size) if start_size < n else np.arange(n)
    centers = _first_centers(x[:, on_device(rows)], clusters, random)
    # a layer gets a separate generator when it draws numbers that the other layers do not
    generators = [random] * layers
    counts = torch.zeros(layers, clusters, device=x.device)
    since = np.zeros(layers, int)
    mean = np.full(layers, np.nan)
    best = np.full(layers, np.inf)
    idle = np.zeros(layers, int)
    final = torch.empty_like(centers)
    active = np.arange(layers)
    alpha = min(1.0, batch * 2 / (n + 1))
    for step in range(_MAX_ITER * n // batch):
        drawn: dict[int, np.ndarray] = {}
        for i in active:
            if id(generators[i]) not in drawn:
                drawn[id(generators[i])] = generators[i].choice(n, batch, p=weights, replace=True)
        places = on_device(np.stack([drawn[id(generators[i])] for i in active]))
        rows_left = on_device(active)
        points = x[rows_left[:, None], places]
        labels, distances = _nearest(points, centers)
        inertia = distances.clamp_min_(0).sum(1, dtype=torch.float64).cpu().numpy() / batch
        empty = (counts == 0).any(1).cpu().numpy()
        centers, counts = _move_centers(points, labels, centers, counts)
        since[active] += batch
        restart = empty | (since[active] >= 10 * clusters)
        if restart.any():
            since[active[restart]] = 0
            _restart(points, centers, counts, active, np.flatnonzero(restart), generators, random)
        if step == 0:
            continue
        mean[active] = np.where(
            np.isnan(mean[active]), inertia, mean[active] * (1 - alpha) + inertia * alpha
        )
        better = mean[active] < best[active]
        idle[active] = np.where(better, 0, idle[active] + 1)
        best[active] = np.where(better, mean[active], best[active])
        ended = idle[active] >= _NO_IMPROVEMENT
        if ended.any():
            done = on_device(ended)
            final[rows_left[done]] = centers[done]
            stay = ~done
            active = active[~ended]
            centers = centers[stay]
            counts = counts[stay]
            if not len(active):
                break
    if len(active):
        final[on_device(active)] = centers
    return _nearest(x, final)[0]


def _nearest(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest center of each point, and the squared distance to it."""
    distances = torch.baddbmm(
        centers.square().sum(2)[:, None], points, centers.transpose(1, 2), alpha=-2
    )
    near, labels = distances.min(2)
    return labels, near + points.square().sum(2)


def _first_centers(x: Tensor, clusters: int, random: np.random.RandomState) -> Tensor:
    """Return centers by k-means++ with several candidates per center, of which it takes the
    best."""
    layers, n, width = x.shape
    trials = 2 + int(np.log(clusters))
    norms = x.square().sum(2)
    weights = np.ones(n, dtype=np.float32)
    layer_numbers = torch.arange(layers, device=x.device)
    start = int(random.choice(n, p=weights / weights.sum()))
    chosen = torch.full((layers,), start, device=x.device)
    centers = torch.empty(layers, clusters, width, device=x.device)
    centers[:, 0] = x[:, start]
    closest = _distances(x, norms, chosen[:, None])[:, 0]
    for c in range(1, clusters):
        host = closest.cpu().numpy()
        thresholds = random.uniform(size=trials) * host.sum(1, keepdims=True)
        sums = np.cumsum(host, axis=1)
        places = np.stack(
            [np.searchsorted(row, value) for row, value in zip(sums, thresholds, strict=True)]
        )
        candidates = torch.as_tensor(np.minimum(places, n - 1), device=x.device)
        distances = torch.minimum(closest[:, None], _distances(x, norms, candidates))
        best = distances.sum(2).argmin(1)
        closest = distances[layer_numbers, best]
        chosen = candidates[layer_numbers, best]
        centers[:, c] = x[layer_numbers, chosen]
    return centers


def _distances(x: Tensor, norms: Tensor, rows: Tensor) -> Tensor:
    """Return the squared distances (layers, rows, n) of all vectors from the chosen rows."""
    chosen = torch.gather(x, 1, rows[:, :, None].expand(-1, -1, x.shape[2]))
    chosen_norms = torch.gather(norms, 1, rows)[:, :, None]
    return torch.baddbmm(
        norms[:, None] + chosen_norms, chosen, x.transpose(1, 2), alpha=-2
    ).clamp_min_(0)


def _move_centers(
    points: Tensor, labels: Tensor, centers: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """Return centers as the means of all their points so far, and the numbers of these points."""
    membership = torch.nn.functional.one_hot(labels, centers.shape[1]).float()
    new = counts + membership.sum(1)
    sums = torch.baddbmm(centers * counts[:, :, None], membership.transpose(1, 2), points)
    means = sums / new.clamp_min(1)[:, :, None]
    return torch.where((new > counts)[:, :, None], means, centers), new


def _restart(
    points: Tensor,
    centers: Tensor,
    counts: Tensor,
    active: np.ndarray,
    restarted: np.ndarray,
    generators: list[np.random.RandomState],
    shared: np.random.RandomState,
) -> None:
    """Move the centers of very small clusters to points of the batch, as scikit-learn does."""
    batch = points.shape[1]
    host = counts[torch.as_tensor(restarted, device=points.device)].cpu().numpy()
    for i, sizes in zip(restarted, host, strict=True):
        small = sizes < _REASSIGN * sizes.max()
        if small.sum() > 0.5 * batch:
            small[np.argsort(sizes)[int(0.5 * batch) :]] = False
        if not small.any():
            continue
        layer = int(active[i])
        generator = generators[layer]
        if generator is shared:
            generator = generators[layer] = copy.deepcopy(shared)
        drawn = generator.choice(batch, replace=False, size=int(small.sum()))
        places = torch.as_tensor(np.flatnonzero(small), device=points.device)
        centers[i, places] = points[i, torch.as_tensor(drawn, device=points.device)]
        counts[i, places] = float(sizes[~small].min())


def v_measures(labels: Tensor, gold: np.ndarray) -> np.ndarray:
    """Return the V-measure of each row of clusters (layers, n) against labels (n,) from 0.

    >>> v_measures(torch.tensor([[0, 0, 1, 1], [0, 1, 0, 1]]), np.array([1, 1, 0, 0])).round(3)
    array([1., 0.])
    """
    n_labels = int(gold.max()) + 1
    clusters = int(labels.max()) + 1
    layers, n = labels.shape
    cells = (torch.arange(layers, device=labels.device)[:, None] * clusters + labels) * n_labels
    cells = cells + torch.as_tensor(gold, device=labels.device)
    table = torch.bincount(cells.flatten(), minlength=layers * clusters * n_labels).view(
        layers, clusters, n_labels
    )
    share = table.double().cpu().numpy() / n
    h_cluster = _entropy(share.sum(2))
    h_class = _entropy(share.sum(1))
    h_both = _entropy(share.reshape(layers, -1))
    shared = np.maximum(h_cluster + h_class - h_both, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        homogeneous = np.where(h_class > 0, shared / h_class, 1.0)
        complete = np.where(h_cluster > 0, shared / h_cluster, 1.0)
        total = homogeneous + complete
        return np.where(total > 1e-12, 2 * homogeneous * complete / total, 0.0)


def _entropy(shares: np.ndarray) -> np.ndarray:
    return -np.sum(shares * np.log(np.where(shares > 0, shares, 1.0)), axis=1)
