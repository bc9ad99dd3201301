"""How each metric goes with the score over the layers of one model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from layerscope.core.sites import whole_layers
from layerscope.core.statistics import mean_ranks
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


def _ranked(values: np.ndarray) -> np.ndarray:
    """Ranks about their mean; ties share theirs."""
    ranks = mean_ranks(values)
    return ranks - ranks.mean()


def _smoothness(ranks: np.ndarray) -> np.ndarray:
    """Autocorrelations from lag 1 to half the length."""
    n = len(ranks)
    return np.array([ranks[lag:] @ ranks[:-lag] for lag in range(1, n // 2)]) / (ranks @ ranks)


class _Series:
    """A curve over layers; what its rank correlations need is computed once for each set of layers used."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.asarray(values, dtype=float)
        self.known = np.isfinite(self.values)
        self._held: dict[bytes, tuple[np.ndarray, np.ndarray] | None] = {}

    def at(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Ranks and autocorrelations on some layers; None where the curve is constant."""
        key = mask.tobytes()
        if key not in self._held:
            ranks = _ranked(self.values[mask])
            self._held[key] = (ranks, _smoothness(ranks)) if ranks.any() else None
        return self._held[key]


def rank_correlation(x: _Series, y: _Series) -> tuple[float, float, int]:
    """(Spearman's ρ, the |ρ| that chance reaches in 95 % of cases, layers used); undefined below four layers or for a constant.

    Neighbouring layers are alike, so the number of independent points is smaller than the number of layers: Bartlett's
    n / (1 + 2 Σ r_x(k) r_y(k)), with both curves' own autocorrelations.
    """
    mask = x.known & y.known
    n = int(mask.sum())
    first, second = (x.at(mask), y.at(mask)) if n >= 4 else (None, None)
    if first is None or second is None:
        return math.nan, math.nan, n
    (a, smooth_a), (b, smooth_b) = first, second
    rho = float(a @ b / math.sqrt(float((a @ a) * (b @ b))))
    lags = np.arange(1, n // 2)
    total = 1 + 2 * float(((1 - lags / n) * smooth_a * smooth_b).sum())
    independent = min(float(n), max(3.0, n / max(total, 1.0)))
    return rho, min(1.0, 1.96 / math.sqrt(independent - 1)), n


def shuffled_noise(n: int) -> float:
    """The |ρ| that n layers in random order reach in 95 % of cases, by permutation; not a number below five layers."""
    from layerscope.correlation import maths

    if n < 5:
        return math.nan
    layers = np.arange(n, dtype=float)
    drawn = maths.null_values("spearman", layers[None], layers, maths.draw_permutations(n, 1999, 0))
    return float(np.quantile(np.abs(drawn), 0.95))


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
        (str(metric), str(sink)): _Series(rows.drop_duplicates("layer").set_index("layer")["value"].reindex(common).to_numpy())
        for (metric, sink), rows in layers.groupby(["metric", "sink"], sort=False)
    }
    rows = []
    for readout in score.readouts:
        grid = score.grid(readout)
        targets = {MEAN: score.mean(readout)} if len(grid) > 1 else {}
        if not curve.mean_only:
            targets |= {str(task): values for task, values in grid.T.items()}
        for task, values in targets.items():
            target = _Series(values.reindex(common).to_numpy())
            for (metric, sink), series in by_metric.items():
                rows.append([readout, task, metric, sink, *rank_correlation(series, target)])
    return pd.DataFrame(rows, columns=["readout", "task", "metric", "sink", "rho", "noise", "n"])
