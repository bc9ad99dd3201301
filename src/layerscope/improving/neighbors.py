"""Five of the user's texts with their nearest neighbors, before and after: what a number cannot
show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.heads import unit

SHOWN = 5
NEAREST = 3
COLUMNS = ["text", "which", "rank", "neighbor", "cosine"]


def neighbor_table(
    texts: Sequence[str], before: np.ndarray, after: np.ndarray,
    among: tuple[Sequence[str], np.ndarray, np.ndarray] | None = None,
) -> pd.DataFrame:  # fmt: skip
    """The nearest texts of the first few, by cosine, under two sets of vectors (texts, D). The
    texts are a random sample.

    `among`: other texts and their two sets of vectors, to find neighbors among these.
    """
    rows: list[dict[str, Any]] = []
    others, *sets = among or (texts, before, after)
    for which, asking, vectors in (("before", before, sets[0]), ("after", after, sets[1])):
        cosines = unit(asking)[:SHOWN] @ unit(vectors).T
        for i, row in enumerate(cosines):
            order = [int(j) for j in np.argsort(-row, kind="stable") if j != i or among][:NEAREST]
            rows += [
                {
                    "text": texts[i],
                    "which": which,
                    "rank": rank,
                    "neighbor": others[j],
                    "cosine": float(row[j]),
                }
                for rank, j in enumerate(order, 1)
            ]
    return pd.DataFrame(rows, columns=COLUMNS)


def changed_share(before: np.ndarray, after: np.ndarray) -> float:
    """The share of all texts' nearest neighbors that are other ones afterwards."""
    found = []
    for vectors in (before, after):
        rows = unit(vectors)
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, -np.inf)
        found.append(np.argpartition(-cosines, NEAREST - 1, axis=1)[:, :NEAREST])
    kept = [len(set(a) & set(b)) for a, b in zip(*(rows.tolist() for rows in found), strict=True)]
    return 1 - float(np.mean(kept)) / NEAREST
