"""Published metric curves as the evidence that the label-free rules of `layerscope` read."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from layerscope.choose.label_free import Curve, Evidence
from layerscope_paper.atlas.overlay import PROFILE_METRICS
from layerscope_paper.atlas.queries import metric_values
from layerscope_paper.atlas.tables import find_model

# The atlas's names for the metrics of a profile. `entropy_sentence` is the older code's prompt
# entropy.
ATLAS_METRICS = {metric: published for published, metric in PROFILE_METRICS.items()}


@lru_cache(maxsize=64)
def published_evidence(name: str) -> Evidence:
    """Return the evidence on a model of the atlas: its metrics on wikitext, the one corpus that
    every family has.

    Curvature is the signed angle, as in a profile: π minus the published angle of the absolute
    cosine (`atlas.reproduce.base`).
    """
    model = find_model(name)
    values = metric_values(model, dataset="wikitext")
    blocks = round(float((values["layer"] / values["depth"].where(values["depth"] > 0)).max()))
    curves = {}
    for metric, published in ATLAS_METRICS.items():
        rows = values[values["metric"] == published]
        if len(rows):
            means = rows.groupby("layer")["value"].mean().reindex(range(blocks + 1))
            value = means.to_numpy(dtype=float)
            curves[metric] = Curve.exact(np.pi - value if metric == "curvature" else value)
    return Evidence(
        model=model.name,
        n_blocks=blocks,
        curves=curves,
    )
