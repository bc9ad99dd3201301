"""Finished probes: how well every layer's states give the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.capture import Site
from layerscope.core.charts import Figure
from layerscope.core.columns import pivot
from layerscope.core.runs import view
from layerscope.core.scores import DRAWS, Scores
from layerscope.core.statistics import INTERVAL, bootstrap_weights
from layerscope.errors import UnknownNameError
from layerscope.store import StoredRun


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (Wilson 1927), which stays inside 0 to 1.

    >>> tuple(round(x, 3) for x in wilson(8, 10))
    (0.49, 0.943)
    """
    from scipy.stats import binomtest  # takes a while to import

    if n == 0:
        return math.nan, math.nan
    ends = binomtest(hits, n).proportion_ci(method="wilson")
    return float(ends.low), float(ends.high)


def score_layers(correct: np.ndarray, seed: int = 0, draws: int = DRAWS) -> Scores:
    """Return the accuracies of layers from their correct items (layers, n), with resamples."""
    n = correct.shape[1]
    # One product with the number of times that each item is drawn, instead of a gather per draw.
    counts = bootstrap_weights(n, draws, [seed, n]).astype(np.float32)
    drawn = (correct.astype(np.float32) @ counts.T).astype(np.float64) / n
    return Scores(correct.mean(axis=1), drawn)


_NO_SETTINGS = {"learning_rate": math.nan, "epoch": 0, "epochs": 0, "strength": math.nan}


@dataclass(frozen=True)
class Predictions:
    """The predicted classes (layers, test items) under one kind of probe.

    `validation` is each layer's accuracy on the validation part. `settings` are chosen for each
    layer: the learning rate, the best epoch and the last one of attention probes, the strength
    (scikit-learn's `C`) of logistic regressions.
    """

    classes: np.ndarray
    validation: np.ndarray
    settings: Mapping[str, np.ndarray] = field(default_factory=dict)


def probe_table(
    predictions: Mapping[str, Predictions],
    sites: Sequence[Site],
    blocks: int,
    labels: np.ndarray,
    seed: int,
) -> pd.DataFrame:
    """Return one row per probe and layer; `labels` are the test items' classes."""
    last = max(range(len(sites)), key=lambda i: sites[i].layer)
    tables = []
    for probe, predicted in predictions.items():
        correct = predicted.classes == labels
        scored = score_layers(correct, seed)
        gain, low, high = scored.gains(last)
        bounds = np.array([wilson(int(hits.sum()), len(hits)) for hits in correct])
        columns = {
            "probe": probe,
            "metric": "top1",
            "layer": [site.layer for site in sites],
            "depth": [site.layer / blocks for site in sites],
            "site": [site.name for site in sites],
            "value": correct.mean(axis=1),
            "ci_low": bounds[:, 0],
            "ci_high": bounds[:, 1],
            "n": correct.shape[1],
            "gain": gain,
            "gain_low": low,
            "gain_high": high,
            "tied_best": scored.tied(),
            "validation": predicted.validation,
            **_NO_SETTINGS,
            **predicted.settings,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def item_table(
    predictions: Mapping[str, Predictions],
    sites: Sequence[Site],
    items: np.ndarray,
    labels: np.ndarray,
) -> pd.DataFrame:
    """Return one row per probe, layer and test item: its class and the predicted one."""
    tables = []
    for probe, predicted in predictions.items():
        columns = {
            "layer": np.repeat([site.layer for site in sites], len(items)),
            "item": np.tile(items, len(sites)),
            "label": np.tile(labels, len(sites)),
            "predicted": predicted.classes.ravel(),
        }
        table = pd.DataFrame(columns, dtype=np.int32)
        table.insert(0, "probe", probe)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


@dataclass
class ProbeRun(StoredRun):
    """The result of `layerscope.probe`. `table` has a row per probe and layer; `items` a row
    per test item as well."""

    kind: ClassVar[str] = "probe"
    files: ClassVar[dict[str, str]] = {"probe": "table", "items": "items"}
    without_csv: ClassVar[tuple[str, ...]] = ("items",)

    table: pd.DataFrame
    items: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None

    @property
    def probes(self) -> list[str]:
        """Return the kinds of probes."""
        return list(dict.fromkeys(self.table["probe"]))

    def curve(self, probe: str | None = None) -> pd.DataFrame:
        """Return the accuracy of one probe over the layers."""
        name = probe or self.probes[0]
        if name not in self.probes:
            raise UnknownNameError("probe in this run", name, self.probes)
        rows = self.table[self.table["probe"] == name]
        return rows.sort_values("layer").reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        """Return the main results as plain values: per probe the best layer and the last.

        `chosen` is the layer that is best on the validation items (of several, the deepest); its
        gain over the last layer is fair, since the test items had no part in the choice. `best` is
        picked on the test items themselves: too optimistic.
        """
        by_probe = {}
        for probe in self.probes:
            curve = self.curve(probe)
            best = curve.iloc[int(curve["value"].argmax())]
            last = curve.iloc[-1]
            chosen = curve[curve["validation"] == curve["validation"].max()].iloc[-1]
            facts: dict[str, Any] = {}
            for name, row in (("best", best), ("last", last), ("chosen", chosen)):
                facts |= {f"{name}_layer": int(row["layer"]), name: float(row["value"])}
                facts[f"{name}_ci"] = [float(row[end]) for end in INTERVAL]
            by_probe[probe] = {
                **facts,
                "tied": [int(layer) for layer in curve.loc[curve["tied_best"], "layer"]],
                "gain": float(chosen["gain"]),
                "gain_ci": [float(chosen["gain_low"]), float(chosen["gain_high"])],
            }
        return {
            "model": self.name,
            "data": self.manifest["data"]["name"],
            "items": self.manifest["counts"],
            "probes": by_probe,
            **super().summary(),
        }

    def plot(self) -> Figure:
        """Return a chart of accuracy against depth."""
        return view(self.kind, "plot")(self)

    def wide(self) -> pd.DataFrame:
        """Return a table with a row per layer and a column per probe."""
        return pivot(self.table, "probe").rename_axis(columns=None)

    def __repr__(self) -> str:
        count = self.table["layer"].nunique()
        data = self.manifest["data"]["name"]
        return f"<ProbeRun {self.name} on {data}: {', '.join(self.probes)} at {count} layers>"
