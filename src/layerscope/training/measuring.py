"""Every layer on the held-out texts: one reduced pass, and a few numbers per layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from layerscope.capture import Batch, Reducer
from layerscope.metrics import Options, prepare_rows
from layerscope.metrics.effective_rank import effective_rank
from layerscope.metrics.entropy import smaller_gram, spectrum_entropy
from layerscope.models import LoadedModel
from layerscope.reading import BatchRunner
from layerscope.spectra import eigvalsh

COLUMNS = ["step", "site", "layer", "depth", "metric", "sink", "value", "n"]
# metric, sink setting, and the per-prompt field it is the mean of
_OF_TOKENS = (
    ("prompt_entropy", "keep", "entropy_keep"),
    ("prompt_entropy", "drop", "entropy_drop"),
    ("curvature", "keep", "curvature_keep"),
    ("curvature", "drop", "curvature_drop"),
    ("sink_ratio", "keep", "sink_ratio"),
)


def measure_layers(
    model: LoadedModel, reducer: Reducer, prompts: Sequence[np.ndarray], options: Options, step: int
) -> list[dict[str, Any]]:
    """One row per layer, metric and sink setting. Undefined prompts are left out of a mean; `n` says how many were in."""
    pooled: list[np.ndarray] = []
    tokens: dict[str, list[np.ndarray]] = {}

    def keep(_: list[int], batch: Batch) -> None:
        reduced = reducer.run(batch, model.run, token_level=True)
        pooled.append(reduced.pooled)
        for name, values in reduced.tokens.items():
            tokens.setdefault(name, []).append(values)

    with reducer:
        BatchRunner(model).run(prompts, keep)
    vectors = torch.from_numpy(np.concatenate(pooled, axis=1)).double()
    spectra = eigvalsh(smaller_gram(prepare_rows(vectors, options.pooled_rows))).clamp(min=0)
    of_pooled = {
        "dataset_entropy": spectrum_entropy(spectra, options.alpha).tolist(),
        "effective_rank": effective_rank(spectra).tolist(),
    }
    rows: list[dict[str, Any]] = []
    for k, site in enumerate(reducer.sites):
        place = {"step": step, "site": site.name, "layer": site.layer, "depth": site.depth}
        for metric, sink, field in _OF_TOKENS:
            values = np.concatenate([block[k] for block in tokens[field]])
            defined = values[np.isfinite(values)]
            if len(defined):
                rows.append({**place, "metric": metric, "sink": sink, "value": float(defined.mean()), "n": len(defined)})
        for metric, found in of_pooled.items():
            if np.isfinite(found[k]):
                rows.append({**place, "metric": metric, "sink": "keep", "value": found[k], "n": len(prompts)})
    return rows
