"""The paper's rules: the layer at which a metric is lowest."""

from __future__ import annotations

import numpy as np

from layerscope.errors import LayerscopeError
from layerscope.selection.evidence import ATLAS_METRICS, Evidence
from layerscope.selection.rules.base import Answer, Rule, register


def _lowest(metric: str) -> Rule:
    def choose(evidence: Evidence) -> Answer:
        curve = evidence.curve(metric)
        if curve is None:
            held = ", ".join(sorted(evidence.curves)) or "none"
            raise LayerscopeError(f"lowest_{metric} needs {metric} at every layer of {evidence.model}; measured: {held}.")
        layer = int(np.argmin(curve.value))
        # layers whose interval reaches below the upper end of the lowest one's
        tied = np.flatnonzero(np.nan_to_num(curve.low, nan=np.inf) <= np.nan_to_num(curve.high[layer], nan=curve.value[layer]))
        warning = "on the published results this rule loses to the last layer on some families: docs/selection.md has the table."
        return Answer(layer, f"{metric} is lowest there.", None, tuple(int(k) for k in tied), (warning,))

    return choose


for _metric in ATLAS_METRICS:

    def _make(_: float | None, metric: str = _metric) -> Rule:
        return _lowest(metric)

    register(f"lowest_{_metric}", f"the layer at which {_metric} is lowest")(_make)
