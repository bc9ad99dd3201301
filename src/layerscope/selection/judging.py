"""The atlas as a judge: what a choice of layer would have gained over the last layer on a model's tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

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

        A layer at which fewer than half of the tasks were run stands for the nearest with more (the earlier of two).
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
            found = table[rows, at]
        else:
            rows = np.array([list(self.gains.index).index(task) for task in layer])
            found = table[rows, list(layer.values())]
        return float(found.mean()), float(np.nanmax(table[rows], axis=1).mean())

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
    from layerscope import atlas

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
    from layerscope import atlas
    from layerscope.errors import LayerscopeError

    found = []
    for name in atlas.models()["model"]:
        if family_of(str(name)) is None:
            continue
        try:
            judged = judge(str(name))
        except LayerscopeError:  # a model with metrics but no scores
            continue
        if judged is not None:
            found.append(judged)
    return tuple(found)


def by_family() -> dict[str, list[Judged]]:
    """The judged models under their families."""
    return {family: [m for m in judged_models() if m.family == family] for family in FAMILIES}
