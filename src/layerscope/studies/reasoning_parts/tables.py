"""Prefix entropies as a tidy table: means over prompts, with intervals and the spread between prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from layerscope.metrics import many_intervals
from layerscope.metrics.prompt_entropy import mean_over_prompts
from layerscope.studies.reasoning_parts.measure import SINKS, Measured

COLUMNS = ["model", "site", "layer", "depth", "position", "metric", "sink", "value", "ci_low", "ci_high", "n", "sd"]


def tabulate(measured: Sequence[Measured], seed: int) -> pd.DataFrame:
    """One row per model, layer, position and sink setting; `sd` is over prompts. Positions out of reach are left out."""
    places, estimates, spreads = [], [], []
    for m in measured:
        for sink in SINKS:
            for j, site in enumerate(m.sites):
                for p, position in enumerate(m.positions):
                    values = m.values[sink][:, j, p]
                    values = values[np.isfinite(values)]
                    if len(values):
                        places.append([m.label, site.name, site.layer, site.depth, int(position), "prompt_entropy", sink])
                        estimates.append(mean_over_prompts(values, 0))
                        spreads.append(float(values.std(ddof=1)) if len(values) > 1 else np.nan)
    ends = many_intervals(estimates, seed)
    rows = [
        [*place, e.value, low, high, e.n, sd] for place, e, (low, high), sd in zip(places, estimates, ends, spreads, strict=True)
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def layer_groups(depths: np.ndarray, count: int) -> np.ndarray:
    """The group of each layer, by depth.

    >>> layer_groups(np.array([0.0, 0.2, 0.5, 0.9, 1.0]), 3).tolist()
    [0, 0, 1, 2, 2]
    """
    return np.minimum((depths * count).astype(int), count - 1)


def group_names(count: int) -> list[str]:
    """What the groups are called."""
    if count == 1:
        return ["all layers"]
    if count == 3:
        return [f"the {part} third of the layers" for part in ("first", "middle", "last")]
    return [f"the layers at depth {i / count:.2g} to {(i + 1) / count:.2g}" for i in range(count)]
