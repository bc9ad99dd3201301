"""Published gains over the last layer, model by model, and the depth curves fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.label_free import DEPTHS, Calibration, Prior, best_layer
from layerscope.core.statistics import LEAST_SHARE, deepest_share
from layerscope.errors import LayerscopeError
from layerscope_paper import atlas
from layerscope_paper.atlas.evidence import published_evidence

GROUPS = ("valley", "no_valley")
# a family's curve is the lower quartile of its models, so that one checkpoint cannot decide
QUARTILE = 0.25
# losses are clipped at the whole headroom, so that one family's failure does not dominate the mean
CLIP = 1.0
# Families with scores at the last layer and most others, by mean pooling. A family has all models
# whose name begins with its name.
FAMILIES = ("Pythia", "bert", "mamba", "LLM2Vec")
_LEAST_TASKS = 10
WINSOR = 5.0  # points; larger gains and losses are cut to this before a forecast is calibrated


@dataclass(frozen=True)
class Outcome:
    """The gain of the rule on a model of a family that it was not fitted on."""

    family: str
    model: str
    layer: int
    predicted_share: float
    gain: float


def calibrate(outcomes: Sequence[Outcome]) -> Calibration:
    """Return the calibration by the outcomes on families left out.

    One more family without gain is added to them, which makes the calibration more cautious.
    """
    table = pd.DataFrame(outcomes)
    table["gain"] = table["gain"].clip(-WINSOR, WINSOR)
    families = table.groupby("family")
    means = np.array([*families["gain"].mean(), 0.0])
    within = families["gain"].var().dropna()
    variance = float(means.var(ddof=1)) * (1 + 1 / len(means))
    variance += float(within.mean()) if len(within) else 0.0
    typical = float(families["predicted_share"].mean().mean())
    return Calibration(float(means.mean()), typical, variance**0.5, len(families))


@dataclass(frozen=True)
class Judged:
    """Gains over the last layer (points) of one model: tasks × layers 0 … n, undefined where a task
    was not run at a layer."""

    model: str
    family: str
    gains: pd.DataFrame

    @property
    def n_blocks(self) -> int:
        """Blocks of the model."""
        return int(self.gains.columns[-1])

    def gain(self, layer: int | Mapping[str, int]) -> float:
        """Return the mean gain of a layer over the tasks that were run at it, or of a layer per
        task (tasks that it does not name are left out).

        Where fewer than half of the tasks were run at a layer, the nearest layer with more is used
        (the earlier of two).
        """
        return self._judge(layer)[0]

    def share(self, layer: int | Mapping[str, int]) -> float:
        """Return the gain as a share of the headroom on the same tasks."""
        gain, room = self._judge(layer)
        return gain / room if room > 0 else 0.0

    @cached_property
    def scored_layers(self) -> list[int]:
        """Layers at which at least half of the tasks were run."""
        return [
            int(k)
            for k in self.gains.columns
            if self.gains[k].notna().sum() >= 0.5 * len(self.gains)
        ]

    def _judge(self, layer: int | Mapping[str, int]) -> tuple[float, float]:
        """Return (gain, headroom) on the tasks of the choice."""
        table = self._table
        if isinstance(layer, int):
            nearest = min(self.scored_layers, key=lambda k: (abs(k - layer), k))
            rows = np.flatnonzero(np.isfinite(table[:, nearest]))
            gains = table[rows, nearest]
        else:
            rows = np.array([list(self.gains.index).index(task) for task in layer])
            gains = table[rows, list(layer.values())]
        return float(gains.mean()), float(np.nanmax(table[rows], axis=1).mean())

    @cached_property
    def _table(self) -> np.ndarray:
        return self.gains.to_numpy(dtype=float)

    def curve(self, depths: np.ndarray) -> np.ndarray:
        """Return the share of the headroom at some depths, interpolated between scored layers."""
        layers = self.scored_layers
        return np.interp(depths, np.array(layers) / self.n_blocks, [self.share(k) for k in layers])


def family_of(model: str) -> str | None:
    """Return the family of a published model; None if it is not judged."""
    if model.startswith("bert_CLS"):
        return None
    return next((family for family in FAMILIES if model.startswith(family)), None)


def judge(model: str) -> Judged | None:
    """Return the gains of one published model; None where the last layer was not scored on enough
    tasks."""
    scores = atlas.select_scores(model, "english")
    blocks = round(float((scores["layer"] / scores["depth"].where(scores["depth"] > 0)).max()))
    table = 100 * scores.pivot_table(index="task", columns="layer", values="score").reindex(
        columns=range(blocks + 1)
    )
    table = table[table[blocks].notna()]
    if len(table) < _LEAST_TASKS:
        return None
    return Judged(model, family_of(model) or model, table.sub(table[blocks], axis=0))


@lru_cache(maxsize=1)
def judged_models() -> tuple[Judged, ...]:
    """Return every model that can be judged."""
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


def fit(
    models: Sequence[Judged], depth_of_valley: Mapping[str, float], outcomes: bool = True
) -> Prior:
    """Return curves from these models alone, calibrated by leaving out each of their families."""
    curves: dict[str, dict[str, np.ndarray]] = {group: {} for group in GROUPS}
    for family in sorted({m.family for m in models}):
        for group in GROUPS:
            stacked = [
                np.clip(m.curve(DEPTHS), -CLIP, CLIP)
                for m in models
                if m.family == family
                and (depth_of_valley[m.model] >= LEAST_SHARE) == (group == "valley")
            ]
            if stacked:
                curves[group][family] = np.quantile(np.array(stacked), QUARTILE, axis=0)
    calibration = calibrate(left_out(models, depth_of_valley)) if outcomes else None
    return Prior(curves, calibration)


def left_out(models: Sequence[Judged], depth_of_valley: Mapping[str, float]) -> list[Outcome]:
    """Return the choices of the curves and their gains on each family when fitted on the others."""
    outcomes = []
    for family in sorted({m.family for m in models}):
        training = [m for m in models if m.family != family]
        if not training:
            continue
        prior = fit(training, depth_of_valley, outcomes=False)
        for model in (m for m in models if m.family == family):
            has_valley = float(depth_of_valley[model.model] >= LEAST_SHARE)
            shares = prior.shares(has_valley, model.n_blocks)
            layer = best_layer(shares)
            share = float(shares[layer])
            outcomes.append(Outcome(family, model.model, layer, share, model.gain(layer)))
    return outcomes


def as_dict(prior: Prior) -> dict[str, Any]:
    """Return a prior as plain values, which the package holds."""
    return {
        "depths": [round(float(d), 4) for d in DEPTHS],
        "least_depth_of_a_valley": LEAST_SHARE,
        "curves": {
            g: {f: [round(float(x), 4) for x in c] for f, c in by.items()}
            for g, by in prior.curves.items()
        },
        "calibration": None if prior.calibration is None else asdict(prior.calibration),
    }


def valley_depths(models: Sequence[Judged]) -> dict[str, float]:
    """Return the relative depth of each model's valley, on wikitext, without its scores."""
    depths = {}
    for model in models:
        curve = published_evidence(model.model).curve("prompt_entropy")
        assert curve is not None, f"the atlas has prompt entropy of {model.model} at every layer"
        depths[model.model] = float(deepest_share(curve.value))
    return depths
