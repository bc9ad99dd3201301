"""What an exported folder must give back: layerscope's own vectors of the whole model, read at the layer that was cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from layerscope.capture import Batch, expand_sites
from layerscope.capture.pooling import Pooler
from layerscope.core.readout import Readout
from layerscope.models import LoadedModel
from layerscope.reading import BatchRunner


def pooled_vectors(model: LoadedModel, ids: Sequence[Sequence[int]], layer: int, readout: Readout) -> np.ndarray:
    """The vectors (texts, D) of token ids at one layer, pooled over the whole sequence; not centred, not scaled."""
    site = next(site for site in expand_sites(None, model.anatomy) if site.layer == layer)
    kind = f"{readout.pooling}/{readout.final_norm}"
    rows = [list(row) or [model.pad_id] for row in ids]
    out = np.empty((len(rows), model.width), dtype=np.float32)
    with Pooler(model.anatomy, [site], [kind]) as pooler:

        def keep(items: list[int], batch: Batch) -> None:
            found, _ = pooler.run(batch, [(0, len(rows[i])) for i in items], model.run)
            out[items] = found[kind][0]

        BatchRunner(model).run(rows, keep)
    return out


def finished(vectors: np.ndarray, mean: np.ndarray | None, unit: bool) -> np.ndarray:
    """Vectors centred, then scaled to length 1, as the evaluation does both."""
    out = vectors.astype(np.float64) if mean is None else vectors.astype(np.float64) - mean
    return out / np.maximum(np.linalg.norm(out, axis=1, keepdims=True), 1e-30) if unit else out


def cosine_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """1 − cosine of each pair of rows, exact for rows that are almost the same (half the squared distance of their directions).

    >>> cosine_distances(np.array([[1.0, 0.0]]), np.array([[0.0, 2.0]])).tolist()
    [1.0]
    """
    directions = []
    for rows in (a.astype(np.float64), b.astype(np.float64)):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        directions.append(rows / np.where(lengths > 0, lengths, np.nan))
    return 0.5 * ((directions[0] - directions[1]) ** 2).sum(1)
