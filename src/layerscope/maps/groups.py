"""Groups of texts that lie together, named by the words that are common in them and rare
elsewhere."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from layerscope.core.heads import unit

GROUPS = 8
_WORD = re.compile(r"[^\W\d_]{3,}")


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
