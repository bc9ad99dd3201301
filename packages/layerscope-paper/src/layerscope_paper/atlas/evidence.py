"""Published metric curves as the evidence that the label-free rules of `layerscope` read."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from layerscope.choose.label_free import Curve, Evidence
from layerscope_paper.atlas.overlay import OURS
from layerscope_paper.atlas.queries import metric_values
from layerscope_paper.atlas.tables import find_model

# The atlas's names for the metrics of a profile. `entropy_sentence` is the older code's prompt
# entropy.
ATLAS_METRICS = {ours: theirs for theirs, ours in OURS.items()}


@lru_cache(maxsize=64)
def published_evidence(name: str) -> Evidence:
    """The evidence on a model of the atlas: its metrics on wikitext, the one corpus that every
    family has.

    Curvature is the signed angle, as in a profile: π minus the published angle of the absolute
    cosine (`atlas.reproduce.base`).
    """
    model = find_model(name)
    values = metric_values(model, dataset="wikitext")
    blocks = round(float((values["layer"] / values["depth"].where(values["depth"] > 0)).max()))
    curves = {}
    for ours, theirs in ATLAS_METRICS.items():
        rows = values[values["metric"] == theirs]
        if len(rows):
            value = (
                rows.groupby("layer")["value"]
                .mean()
                .reindex(range(blocks + 1))
                .to_numpy(dtype=float)
            )
            curves[ours] = Curve.exact(np.pi - value if ours == "curvature" else value)
    return Evidence(
        model=model.name,
        n_blocks=blocks,
        curves=curves,
    )
