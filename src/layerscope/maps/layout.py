"""Points in two dimensions from vectors at several layers, by t-SNE, and groups of texts that lie
together.

Each layer starts from the points of the one before, so that points move smoothly. Near texts
are those by cosine.
"""

from __future__ import annotations

import math
import re
from collections import Counter
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
GROUPS = 8
_WORD = re.compile(r"[^\W\d_]{3,}")
TRUSTED = 0.9
"""The trustworthiness below which a picture is not shown."""


@dataclass(frozen=True)
class Reading:
    """One way to read the texts, laid out at some layers.

    - `name` and `says`: the way to read in a word (`baseline`, `better`) and in words.
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

    points = []
    near = []
    trust = []
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
    tsne = TSNE(init="pca", max_iter=500, **options)
    if start is not None:  # exaggeration would tear the points apart again
        initial = start.astype(np.float32)
        tsne = TSNE(init=initial, early_exaggeration=1.0, max_iter=250, **options)
    # its steps are so short that several threads mostly wait for each other
    with threadpool_limits(1):
        points = tsne.fit_transform(rows)
    return np.asarray(points - points.mean(0), dtype=np.float32)


def clusters(vectors: np.ndarray, count: int = GROUPS) -> np.ndarray:
    """Return the number of its group for each vector (n,), the largest group first.

    The groups are by k-means of the centered vectors of length 1.
    """
    from sklearn.cluster import KMeans

    rows = unit(np.asarray(vectors, dtype=np.float64))
    rows = rows - rows.mean(0)
    if not np.isfinite(rows).all() or not rows.any():
        return np.zeros(len(rows), dtype=int)
    count = max(1, min(count, len(rows) // 6, len(np.unique(rows, axis=0))))
    numbers = KMeans(count, n_init=1, random_state=0).fit_predict(unit(rows))
    order = np.argsort(-np.bincount(numbers, minlength=count), kind="stable")
    return np.argsort(order)[numbers]


def group_names(groups: np.ndarray, texts: Sequence[str] | None, words: int = 3) -> list[str]:
    """Return a name for each text's group: its number, and its distinctive words if there are
    texts."""
    titles = {int(k): f"cluster {k + 1}" for k in np.unique(groups)}
    if texts is not None:
        words_by_text = [set(_WORD.findall(text.casefold())) for text in texts]
        totals = Counter(word for distinct in words_by_text for word in distinct)
        for k in titles:
            members = np.flatnonzero(groups == k)
            within = Counter(word for i in members for word in words_by_text[i])
            weights = {}
            for word, count in within.items():
                share = count / len(members)
                weights[word] = share * math.log(share * len(texts) / totals[word])
            ranked = sorted(within, key=lambda word: (-weights[word], word))[:words]
            distinctive = [word for word in ranked if within[word] > 1]
            if distinctive:
                titles[k] += f": {', '.join(distinctive)}"
    return [titles[int(k)] for k in groups]
