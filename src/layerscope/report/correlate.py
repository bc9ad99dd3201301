"""How each metric goes with the score over the layers of one model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from layerscope.core.sites import whole_layers
from layerscope.correlation.maths import RankedCurve, rank_correlation, shuffled_noise
from layerscope.report.notices import same_model
from layerscope.report.sources import Curves, Scores

MEAN = "mean over tasks"


@dataclass
class Correlations:
    """Spearman's ρ of metrics and scores: a row per readout, task, metric and sink setting; `noise` is what chance gives."""

    curves: int
    scores: int
    table: pd.DataFrame
    noise_says: str
    shuffled: float = math.nan


NOISE_SAYS = "Dark band: what shuffled layers give in 95 % of cases. Light band: what unrelated curves as smooth as these give"


def correlate(curves: Sequence[Curves], scores: Sequence[Scores]) -> list[Correlations]:
    """Every profile with every evaluation of the same model."""
    out = []
    for s, score in enumerate(scores):
        for c, curve in enumerate(curves):
            if same_model(curve, score):
                table = _table(curve, score)
                most = int(table["n"].max()) if len(table) else 0
                out.append(Correlations(c, s, table, NOISE_SAYS, shuffled_noise(most)))
    return out


def _table(curve: Curves, score: Scores) -> pd.DataFrame:
    layers = whole_layers(curve.table[curve.table["normalization"] == "raw"])
    common = sorted(set(layers["layer"]) & set(score.table["layer"]))
    by_metric = {
        (str(metric), str(sink)): RankedCurve(
            rows.drop_duplicates("layer").set_index("layer")["value"].reindex(common).to_numpy()
        )
        for (metric, sink), rows in layers.groupby(["metric", "sink"], sort=False)
    }
    rows = []
    for readout in score.readouts:
        grid = score.grid(readout)
        targets = {MEAN: score.mean(readout)} if len(grid) > 1 else {}
        if not curve.mean_only:
            targets |= {str(task): values for task, values in grid.T.items()}
        for task, values in targets.items():
            target = RankedCurve(values.reindex(common).to_numpy())
            for (metric, sink), series in by_metric.items():
                rows.append([readout, task, metric, sink, *rank_correlation(series, target)])
    return pd.DataFrame(rows, columns=["readout", "task", "metric", "sink", "rho", "noise", "n"])
