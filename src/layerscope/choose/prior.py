"""Depth curves of the published results: how much each layer gains over the last one.

There are curves for models with and without a valley, and how well they carry over to a new family.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np

from layerscope.core.statistics import student_cdf, student_quantile

__all__ = ["DEPTHS", "Outcome", "Prior", "best_layer"]

FILE = "prior.json"
DEPTHS = np.linspace(0.0, 1.0, 41)
WINSOR = 5.0  # points; larger gains and losses are cut to this before a forecast is made
_SMOOTH = np.array([0.1, 0.2, 0.4, 0.2, 0.1])


@dataclass(frozen=True)
class Outcome:
    """The gain of the rule on a model of a family that it had not seen."""

    family: str
    model: str
    layer: int
    predicted_share: float
    gain: float


@dataclass(frozen=True)
class Forecast:
    """Gains of every layer over the last, in points; a gain is off by `scale` times a t variable
    with `df` degrees of freedom."""

    gain: np.ndarray
    scale: float
    df: int

    def interval(self, layer: int) -> tuple[float, float]:
        """Return 95 % bounds of a layer's gain."""
        reach = student_quantile(0.975, self.df) * self.scale
        return float(self.gain[layer] - reach), float(self.gain[layer] + reach)

    def risk(self, layer: int) -> float:
        """Return the chance that a layer scores below the last."""
        return student_cdf(-float(self.gain[layer]) / self.scale, self.df)


@dataclass(frozen=True)
class Prior:
    """Depth curves by group and family (share of the headroom, on `DEPTHS`), and the outcomes on
    families left out."""

    curves: dict[str, dict[str, np.ndarray]]
    outcomes: tuple[Outcome, ...] = ()

    def family_shares(self, probability: float, n_blocks: int) -> np.ndarray:
        """Return the expected share of the headroom by family (rows) and layer.

        The probability is that of a valley.
        """
        depth = np.arange(n_blocks + 1) / n_blocks
        names = sorted({family for group in self.curves.values() for family in group})
        rows = []
        for family in names:
            weighted = [
                (weight, self.curves[group][family])
                for group, weight in (("valley", probability), ("no_valley", 1 - probability))
                if weight > 0 and family in self.curves.get(group, {})
            ]
            total = sum(weight for weight, _ in weighted)
            if total > 0:
                mixed = (
                    sum((weight * curve for weight, curve in weighted), np.zeros_like(DEPTHS))
                    / total
                )
                rows.append(
                    np.interp(
                        depth, DEPTHS, np.convolve(np.pad(mixed, 2, mode="edge"), _SMOOTH, "valid")
                    )
                )
        out = np.array(rows).reshape(len(rows), n_blocks + 1)
        out[:, -1] = 0.0
        return out

    def shares(self, probability: float, n_blocks: int) -> np.ndarray:
        """Return the mean over families within each group, mixed by the probability of a valley.

        The embedding layer is never chosen.
        """
        mixed = np.zeros(n_blocks + 1)
        for weight, certain in ((probability, 1.0), (1 - probability, 0.0)):
            rows = (
                self.family_shares(certain, n_blocks) if weight > 0 else np.zeros((0, n_blocks + 1))
            )
            mixed += weight * (rows.mean(axis=0) if len(rows) else 0.0)
        mixed[0] = -math.inf
        mixed[-1] = 0.0
        return mixed

    def forecast(self, shares: np.ndarray, widen: float = 1.0) -> Forecast:
        """Return gains in points from shares of the headroom, calibrated on the families left out.

        To be careful, one more family that gains nothing is added to them.
        """
        families = sorted({o.family for o in self.outcomes})
        if len(families) < 2:
            return Forecast(np.where(np.isfinite(shares), 0.0, -math.inf), 1.0 * widen, 1)
        capped = {
            f: [float(np.clip(o.gain, -WINSOR, WINSOR)) for o in self.outcomes if o.family == f]
            for f in families
        }
        means = np.array([*(np.mean(values) for values in capped.values()), 0.0])
        within = [float(np.var(values, ddof=1)) for values in capped.values() if len(values) > 1]
        variance = float(means.var(ddof=1)) * (1 + 1 / len(means)) + (
            float(np.mean(within)) if within else 0.0
        )
        typical = float(
            np.mean(
                [
                    np.mean([o.predicted_share for o in self.outcomes if o.family == f])
                    for f in families
                ]
            )
        )
        # no layer is promised more than the rule has delivered on families it had not seen
        ratio = np.minimum(shares / max(typical, 1e-9), 1.0)
        gain = np.where(
            np.isfinite(ratio), np.nan_to_num(ratio, neginf=0.0) * float(means.mean()), -math.inf
        )
        return Forecast(gain, widen * math.sqrt(variance), len(families))


def best_layer(shares: np.ndarray) -> int:
    """Return the layer with the largest share; the last one unless another is expected to gain."""
    layer = int(np.argmax(shares))
    return layer if shares[layer] > 0 else len(shares) - 1


@lru_cache(maxsize=1)
def shipped_prior() -> Prior:
    """Return the prior of the package, fitted on the published scores of four families."""
    stored = json.loads(
        resources.files("layerscope.choose").joinpath(FILE).read_text(encoding="utf-8")
    )
    curves = {g: {f: np.array(c) for f, c in by.items()} for g, by in stored["curves"].items()}
    return Prior(curves, tuple(Outcome(**o) for o in stored["outcomes"]))
