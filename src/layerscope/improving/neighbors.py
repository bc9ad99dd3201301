"""Five of the user's texts with their nearest neighbors, before and after: what numbers cannot
show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.core.heads import unit

SHOWN = 5
NEAREST = 3
COLUMNS = ["text", "which", "rank", "neighbor", "cosine"]


@dataclass(frozen=True)
class BeforeAfter:
    """Texts with their vectors (texts, D) as they are read today, and as was chosen."""

    texts: Sequence[str]
    before: np.ndarray
    after: np.ndarray


def neighbor_table(asking: BeforeAfter, among: BeforeAfter | None = None) -> pd.DataFrame:
    """Return the nearest texts of the first few, by cosine, before and after.

    The texts are a random sample. `among` are other texts to find neighbors in.
    """
    others = among or asking
    rows = []
    for which, vectors, candidates in (
        ("before", asking.before, others.before),
        ("after", asking.after, others.after),
    ):
        cosines = unit(vectors)[:SHOWN] @ unit(candidates).T
        for i, row in enumerate(cosines):
            order = [j for j in np.argsort(-row, kind="stable") if j != i or among is not None]
            rows += [
                (asking.texts[i], which, rank, others.texts[j], float(row[j]))
                for rank, j in enumerate(order[:NEAREST], 1)
            ]
    return pd.DataFrame(rows, columns=COLUMNS)


def changed_share(before: np.ndarray, after: np.ndarray) -> float:
    """Return the share of all texts' nearest neighbors that are other ones afterwards."""
    shared = [
        len(set(old) & set(new)) for old, new in zip(_nearest(before), _nearest(after), strict=True)
    ]
    return 1 - float(np.mean(shared)) / NEAREST


def _nearest(vectors: np.ndarray) -> list[list[int]]:
    rows = unit(vectors)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    nearest: list[list[int]] = np.argpartition(-cosines, NEAREST - 1, axis=1)[:, :NEAREST].tolist()
    return nearest
