"""Points in two dimensions from vectors at several layers, by t-SNE.

Each layer starts from the points of the one before, so that points move smoothly. Near texts
are those by cosine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.core.heads import unit

NEIGHBORS = 10
"""The number of nearest neighbors that are kept of each text."""
MOST = 1000
"""The largest number of texts on a map."""
LEAST = 12
"""The smallest number of texts of which a map says anything."""
MOST_LAYERS = 8
TRUSTED = 0.9
"""The trustworthiness below which a picture is not shown."""


@dataclass(frozen=True)
class Reading:
    """One way to read the texts, laid out at some layers.

    - `name` and `says`: the way to read in a word (`today`, `better`) and in words.
    - `at`: the layer that it is used at.
    - `points` (layers, texts, 2).
    - `near` (layers, texts, neighbors): the nearest texts by cosine, the nearest first.
    - `trust` (layers,): trustworthiness of the points; 0 where all texts have the same vector.
    """

    name: str
    says: str
    at: int
    layers: list[int]
    points: np.ndarray
    near: np.ndarray
    trust: np.ndarray

    @property
    def is_trusted(self) -> bool:
        """True if the picture at the layer that is used may be shown."""
        return bool(self.trust[self.layers.index(self.at)] >= TRUSTED)


def spread(layers: Sequence[int], needed: Iterable[int]) -> list[int]:
    """Return at most eight of the layers: those that are needed, and others evenly over the depth.

    >>> spread(range(25), [20])
    [0, 4, 8, 12, 16, 20, 24]
    """
    used = set(needed) & set(layers)
    count = MOST_LAYERS
    while True:
        places = np.linspace(0, len(layers) - 1, min(count, len(layers)))
        chosen = used | {layers[round(place)] for place in places}
        if len(chosen) <= MOST_LAYERS:
            return sorted(chosen)
        count -= 1


def lay_out(
    vectors: Iterable[np.ndarray], start: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return points, nearest neighbors and trustworthiness of vectors (texts, D), layer by layer.

    `start` are points to begin with.
    """
    from sklearn.manifold import trustworthiness
    from sklearn.neighbors import NearestNeighbors

    points, near, trust = [], [], []
    for layer in vectors:
        rows = unit(np.asarray(layer, dtype=np.float64))
        count = min(NEIGHBORS, (len(rows) - 1) // 2)
        is_defined = np.isfinite(rows).all() and np.abs(rows - rows.mean(0)).max() >= 1e-6
        if is_defined:
            start = _embed(rows, start)
            points.append(start)
            near.append(NearestNeighbors(n_neighbors=count).fit(rows).kneighbors()[1])
            trust.append(trustworthiness(rows, start, n_neighbors=count))
        else:
            points.append(np.zeros((len(rows), 2)))
            near.append(np.zeros((len(rows), count), dtype=np.int64))
            trust.append(0.0)
    return np.stack(points), np.stack(near), np.array(trust)


def _embed(rows: np.ndarray, start: np.ndarray | None) -> np.ndarray:
    """Return points (texts, 2) of rows. From other points on, a few steps are enough."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    perplexity = min(40.0, (len(rows) - 1) / 3)
    options = {"perplexity": perplexity, "metric": "cosine", "random_state": 0}
    if start is None:
        tsne = TSNE(init="pca", max_iter=500, **options)
    else:
        initial = start.astype(np.float32)
        # exaggeration would tear the points apart again
        tsne = TSNE(init=initial, early_exaggeration=1.0, max_iter=250, **options)
    # its steps are so short that several threads mostly wait for each other
    with threadpool_limits(1):
        points = tsne.fit_transform(rows)
    return np.asarray(points - points.mean(0), dtype=np.float32)
