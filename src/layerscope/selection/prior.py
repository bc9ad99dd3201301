"""What the published results say about depth: how much each layer gains over the last one, for models with and without a valley,
and how well that carries over to a new family.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd

from layerscope import atlas
from layerscope.core.statistics import student_cdf, student_quantile
from layerscope.core.valley import LEAST_SHARE
from layerscope.errors import LayerscopeError

FILE = "prior.json"
GROUPS = ("valley", "no_valley")
DEPTHS = np.linspace(0.0, 1.0, 41)
QUARTILE = 0.25  # the lower quartile of its models stands for a family, so that one lucky checkpoint cannot decide
CLIP = 1.0  # losses are clipped at the whole headroom, so that one family's failure does not dominate the mean
WINSOR = 5.0  # points; larger gains and losses are cut to this before a forecast is made
_SMOOTH = np.array([0.1, 0.2, 0.4, 0.2, 0.1])
# Families with scores at the last layer and most others, read by mean pooling. A name stands for all models that begin with it.
FAMILIES = ("Pythia", "bert", "mamba", "LLM2Vec")
_LEAST_TASKS = 10


@dataclass(frozen=True)
class Judged:
    """Gains over the last layer (points) of one model: tasks × layers 0 … n, undefined where a task was not run at a layer."""

    model: str
    family: str
    gains: pd.DataFrame

    @property
    def n_blocks(self) -> int:
        """Blocks of the model."""
        return int(self.gains.columns[-1])

    @property
    def headroom(self) -> float:
        """Best layer of each task − last layer, averaged over tasks."""
        return float(self.gains.max(axis=1).mean())

    def gain(self, layer: int | Mapping[str, int]) -> float:
        """Mean gain of a layer over the tasks that were run at it, or of a layer per task (tasks it does not name are left out).

        Where fewer than half of the tasks were run at a layer, the nearest layer with more is used (the earlier of two).
        """
        return self._judge(layer)[0]

    def share(self, layer: int | Mapping[str, int]) -> float:
        """The gain as a share of the headroom on the same tasks."""
        gain, room = self._judge(layer)
        return gain / room if room > 0 else 0.0

    @cached_property
    def scored_layers(self) -> list[int]:
        """Layers at which at least half of the tasks were run."""
        return [int(k) for k in self.gains.columns if self.gains[k].notna().sum() >= 0.5 * len(self.gains)]

    def _judge(self, layer: int | Mapping[str, int]) -> tuple[float, float]:
        """(gain, headroom) on the tasks that the choice is about."""
        table = self._table
        if isinstance(layer, int):
            at = min(self.scored_layers, key=lambda k: (abs(k - layer), k))
            rows = np.flatnonzero(np.isfinite(table[:, at]))
            gains = table[rows, at]
        else:
            rows = np.array([list(self.gains.index).index(task) for task in layer])
            gains = table[rows, list(layer.values())]
        return float(gains.mean()), float(np.nanmax(table[rows], axis=1).mean())

    @cached_property
    def _table(self) -> np.ndarray:
        return self.gains.to_numpy(dtype=float)

    def curve(self, depths: np.ndarray) -> np.ndarray:
        """Share of the headroom at some depths, interpolated between the scored layers."""
        layers = self.scored_layers
        return np.interp(depths, np.array(layers) / self.n_blocks, [self.share(k) for k in layers])


def family_of(model: str) -> str | None:
    """The family under which a model of the atlas is judged; None where it is not."""
    return next((f for f in FAMILIES if model.startswith(f) and not model.startswith("bert_CLS")), None)


def judge(model: str, family: str = "") -> Judged | None:
    """Gains of one model of the atlas; None where the last layer was not scored on enough tasks."""
    scores = atlas.select_scores(model, "english")
    blocks = round(float((scores["layer"] / scores["depth"].where(scores["depth"] > 0)).max()))
    table = 100 * scores.pivot_table(index="task", columns="layer", values="score").reindex(columns=range(blocks + 1))
    table = table[table[blocks].notna()]
    if len(table) < _LEAST_TASKS:
        return None
    return Judged(model, family or family_of(model) or model, table.sub(table[blocks], axis=0))


@lru_cache(maxsize=1)
def judged_models() -> tuple[Judged, ...]:
    """Every model that can be judged."""
    models = []
    for name in atlas.models()["model"]:
        if family_of(str(name)) is None:
            continue
        try:
            judged = judge(str(name))
        except LayerscopeError:  # a model with metrics but no scores
            continue
        if judged is not None:
            models.append(judged)
    return tuple(models)


@dataclass(frozen=True)
class Outcome:
    """What the rule gained on a model of a family that it had not seen."""

    family: str
    model: str
    layer: int
    predicted_share: float
    gain: float


@dataclass(frozen=True)
class Forecast:
    """Gains of every layer over the last, in points; a gain is off by `scale` times a t variable with `df` degrees of freedom."""

    gain: np.ndarray
    scale: float
    df: int

    def interval(self, layer: int) -> tuple[float, float]:
        """95 % bounds of a layer's gain."""
        reach = student_quantile(0.975, self.df) * self.scale
        return float(self.gain[layer] - reach), float(self.gain[layer] + reach)

    def risk(self, layer: int) -> float:
        """The chance that a layer scores below the last."""
        return student_cdf(-float(self.gain[layer]) / self.scale, self.df)


@dataclass(frozen=True)
class Prior:
    """Depth curves by group and family (share of the headroom, on `DEPTHS`), and the outcomes on families left out."""

    curves: dict[str, dict[str, np.ndarray]]
    outcomes: tuple[Outcome, ...] = ()

    def family_shares(self, probability: float, n_blocks: int) -> np.ndarray:
        """Expected share of the headroom by family (rows) and layer, for a model that has a valley with this probability."""
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
                mixed = sum((weight * curve for weight, curve in weighted), np.zeros_like(DEPTHS)) / total
                rows.append(np.interp(depth, DEPTHS, np.convolve(np.pad(mixed, 2, mode="edge"), _SMOOTH, "valid")))
        out = np.array(rows).reshape(len(rows), n_blocks + 1)
        out[:, -1] = 0.0
        return out

    def shares(self, probability: float, n_blocks: int) -> np.ndarray:
        """The mean over families within each group, mixed by the probability of a valley. The embedding layer is never chosen."""
        mixed = np.zeros(n_blocks + 1)
        for weight, certain in ((probability, 1.0), (1 - probability, 0.0)):
            rows = self.family_shares(certain, n_blocks) if weight > 0 else np.zeros((0, n_blocks + 1))
            mixed += weight * (rows.mean(axis=0) if len(rows) else 0.0)
        mixed[0] = -math.inf
        mixed[-1] = 0.0
        return mixed

    def forecast(self, shares: np.ndarray, widen: float = 1.0) -> Forecast:
        """Gains in points from shares of the headroom, calibrated on the families left out.

        To be careful, one more family that gains nothing is added to them.
        """
        families = sorted({o.family for o in self.outcomes})
        if len(families) < 2:
            return Forecast(np.where(np.isfinite(shares), 0.0, -math.inf), 1.0 * widen, 1)
        capped = {f: [float(np.clip(o.gain, -WINSOR, WINSOR)) for o in self.outcomes if o.family == f] for f in families}
        means = np.array([*(np.mean(values) for values in capped.values()), 0.0])
        within = [float(np.var(values, ddof=1)) for values in capped.values() if len(values) > 1]
        variance = float(means.var(ddof=1)) * (1 + 1 / len(means)) + (float(np.mean(within)) if within else 0.0)
        typical = float(np.mean([np.mean([o.predicted_share for o in self.outcomes if o.family == f]) for f in families]))
        # no layer is promised more than the rule has delivered on families it had not seen
        ratio = np.minimum(shares / max(typical, 1e-9), 1.0)
        gain = np.where(np.isfinite(ratio), np.nan_to_num(ratio, neginf=0.0) * float(means.mean()), -math.inf)
        return Forecast(gain, widen * math.sqrt(variance), len(families))

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "depths": [round(float(d), 4) for d in DEPTHS],
            "least_depth_of_a_valley": LEAST_SHARE,
            "curves": {g: {f: [round(float(x), 4) for x in c] for f, c in by.items()} for g, by in self.curves.items()},
            "outcomes": [
                vars(o) | {"predicted_share": round(o.predicted_share, 4), "gain": round(o.gain, 4)} for o in self.outcomes
            ],
        }


def best_layer(shares: np.ndarray) -> int:
    """The layer with the largest share; the last one unless another is expected to gain."""
    layer = int(np.argmax(shares))
    return layer if shares[layer] > 0 else len(shares) - 1


def fit(models: Sequence[Judged], depth_of_valley: Mapping[str, float], outcomes: bool = True) -> Prior:
    """Curves from these models alone; outcomes by leaving out each of their families in turn."""
    curves: dict[str, dict[str, np.ndarray]] = {group: {} for group in GROUPS}
    for family in sorted({m.family for m in models}):
        for group in GROUPS:
            own = [m for m in models if m.family == family and (depth_of_valley[m.model] >= LEAST_SHARE) == (group == "valley")]
            if own:
                stacked = np.array([np.clip(m.curve(DEPTHS), -CLIP, CLIP) for m in own])
                curves[group][family] = np.quantile(stacked, QUARTILE, axis=0)
    prior = Prior(curves)
    return Prior(curves, tuple(left_out(models, depth_of_valley))) if outcomes else prior


def left_out(models: Sequence[Judged], depth_of_valley: Mapping[str, float]) -> list[Outcome]:
    """What the curves choose and gain on each family when fitted on the others."""
    results = []
    for family in sorted({m.family for m in models}):
        others = [m for m in models if m.family != family]
        if not others:
            continue
        prior = fit(others, depth_of_valley, outcomes=False)
        for model in (m for m in models if m.family == family):
            shares = prior.shares(float(depth_of_valley[model.model] >= LEAST_SHARE), model.n_blocks)
            layer = best_layer(shares)
            results.append(Outcome(family, model.model, layer, float(shares[layer]), model.gain(layer)))
    return results


@lru_cache(maxsize=1)
def shipped_prior() -> Prior:
    """The prior that comes with the package, fitted on every family of the atlas (`python benchmarks/fit_depth_curves.py`)."""
    stored = json.loads(resources.files("layerscope.selection").joinpath(FILE).read_text(encoding="utf-8"))
    curves = {g: {f: np.array(c) for f, c in by.items()} for g, by in stored["curves"].items()}
    return Prior(curves, tuple(Outcome(**o) for o in stored["outcomes"]))
