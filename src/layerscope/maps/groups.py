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
    """The number of its group for each vector (n,): k-means of the centered vectors of length 1,
    the largest group first."""
    from sklearn.cluster import KMeans

    rows = unit(np.asarray(vectors, dtype=np.float64))
    rows = rows - rows.mean(0)
    if not np.isfinite(rows).all() or not rows.any():
        return np.zeros(len(rows), dtype=int)
    count = max(1, min(count, len(rows) // 6, len(np.unique(rows, axis=0))))
    of = KMeans(count, n_init=1, random_state=0).fit_predict(unit(rows))
    order = np.argsort(-np.bincount(of, minlength=count), kind="stable")
    return np.argsort(order)[of]


def group_names(groups: np.ndarray, texts: Sequence[str] | None, words: int = 3) -> list[str]:
    """A name for each text's group: its number, and its most telling words where there are
    texts."""
    titles = {int(k): f"cluster {k + 1}" for k in np.unique(groups)}
    if texts is not None:
        said = [set(_WORD.findall(text.casefold())) for text in texts]
        everywhere = Counter(word for some in said for word in some)
        for k, title in titles.items():
            here = Counter(
                word for some, of in zip(said, groups, strict=True) if of == k for word in some
            )
            size = int((groups == k).sum())

            def telling(
                word: str, here: Counter[str] = here, size: int = size
            ) -> tuple[float, str]:
                share, all_of = here[word] / size, everywhere[word] / len(texts)
                return -share * math.log(share / all_of), word

            best = [word for word in sorted(here, key=telling)[:words] if here[word] > 1]
            titles[k] = f"{title}: {', '.join(best)}" if best else title
    return [titles[int(k)] for k in groups]
