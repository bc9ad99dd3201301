"""Depth curves of the published results: the gain of each layer over the last one.

There are curves for models with and without a valley, and a calibration by the gains of the rule on
families of models that it was not fitted on.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

import numpy as np
from scipy.special import stdtr, stdtrit

__all__ = ["DEPTHS", "Calibration", "Prior", "best_layer"]

FILE = "prior.json"
DEPTHS = np.linspace(0.0, 1.0, 41)
_SMOOTH = np.array([0.1, 0.2, 0.4, 0.2, 0.1])


@dataclass(frozen=True)
class Calibration:
    """The outcomes of the rule on families left out, in points.

    `gain` is their mean gain, where the rule predicted `share` of the headroom on average. `error`
    is the standard error of a gain on one more of the `families`.
    """

    gain: float
    share: float
    error: float
    families: int


@dataclass(frozen=True)
class Forecast:
    """Gains of every layer over the last, in points.

    The error of a gain is `scale` times a t variable with `df` degrees of freedom.
    """

    gain: np.ndarray
    scale: float
    df: int

    def interval(self, layer: int) -> tuple[float, float]:
        """Return 95 % bounds of a layer's gain."""
        reach = float(stdtrit(self.df, 0.975)) * self.scale
        return float(self.gain[layer] - reach), float(self.gain[layer] + reach)

    def risk(self, layer: int) -> float:
        """Return the chance that a layer scores below the last."""
        return float(stdtr(self.df, -float(self.gain[layer]) / self.scale))


@dataclass(frozen=True)
class Prior:
    """Depth curves by group and family, and their calibration.

    The groups are `valley` and `no_valley`. Curves are shares of the headroom, on `DEPTHS`.
    """

    curves: dict[str, dict[str, np.ndarray]]
    calibration: Calibration | None = None

    def family_shares(self, group: str, n_blocks: int) -> np.ndarray:
        """Return the expected share of the headroom by family of a group (rows) and layer."""
        depth = np.arange(n_blocks + 1) / n_blocks
        curves = [curve for _, curve in sorted(self.curves.get(group, {}).items())]
        shares = np.zeros((len(curves), n_blocks + 1))
        for row, curve in enumerate(curves):
            smoothed = np.convolve(np.pad(curve, 2, mode="edge"), _SMOOTH, "valid")
            shares[row] = np.interp(depth, DEPTHS, smoothed)
        shares[:, -1] = 0.0
        return shares

    def shares(self, probability: float, n_blocks: int) -> np.ndarray:
        """Return the mean over families within each group, mixed by the probability of a valley.

        The embedding layer is never chosen.
        """
        mixed = np.zeros(n_blocks + 1)
        for group, weight in (("valley", probability), ("no_valley", 1 - probability)):
            shares = self.family_shares(group, n_blocks)
            if weight > 0 and len(shares):
                mixed += weight * shares.mean(axis=0)
        mixed[0] = -math.inf
        mixed[-1] = 0.0
        return mixed

    def forecast(self, shares: np.ndarray, widen: float = 1.0) -> Forecast:
        """Return gains in points from shares of the headroom.

        No layer is promised more than the rule has delivered on families it had not seen.
        """
        calibration = self.calibration
        assert calibration is not None
        ratio = np.minimum(shares / max(calibration.share, 1e-9), 1.0)
        gain = np.where(np.isfinite(shares), ratio, -math.inf)
        gain[np.isfinite(gain)] *= calibration.gain
        return Forecast(gain, widen * calibration.error, calibration.families)


def best_layer(shares: np.ndarray) -> int:
    """Return the layer with the largest share; the last one unless another is expected to gain."""
    layer = int(np.argmax(shares))
    return layer if shares[layer] > 0 else len(shares) - 1


@lru_cache(maxsize=1)
def shipped_prior() -> Prior:
    """Return the prior of the package, fitted on the published scores of four families."""
    file = resources.files("layerscope.choose").joinpath(FILE)
    stored = json.loads(file.read_text(encoding="utf-8"))
    curves = {
        group: {family: np.array(curve) for family, curve in families.items()}
        for group, families in stored["curves"].items()
    }
    return Prior(curves, Calibration(**stored["calibration"]))
