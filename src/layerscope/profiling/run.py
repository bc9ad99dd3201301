"""A finished profile: its table, its conventions, its per-prompt values, and the valley of its
prompt entropy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from layerscope.core.charts import Figure
from layerscope.core.columns import PROFILE, lowest_and_highest, names, pivot
from layerscope.core.options import count_of
from layerscope.core.runs import view
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import INTERVAL, find_valley
from layerscope.errors import InvalidValueError, RunFolderError, UnknownNameError
from layerscope.metrics import get_metric
from layerscope.store import StoredRun

__all__ = ["EntropyValley", "Profile", "entropy_valley"]

# The valley counts as the sink's when dropping that token fills this share of it.
_SINK_SHARE = 0.5


@dataclass(frozen=True)
class EntropyValley:
    """The valley of prompt entropy, in nats; `drop_value` is its lowest point without the sink
    token."""

    layer: int
    site: str
    value: float
    shoulder: float
    depth: float
    drop_value: float | None
    drop_depth: float | None
    sink_ratio: float | None
    sink_first: float | None
    is_sink: bool | None

    def sentence(self) -> str:
        """Return the valley in words."""
        text = (
            f"Prompt entropy has a valley at layer {self.layer} ({self.site}): {self.value:.2f} "
            f"nats, {self.depth:.2f} below its shoulders."
        )
        if self.is_sink is None or self.drop_value is None:
            return text
        if not self.is_sink:
            return (
                f"{text} It is not the sink: without the largest token it is still "
                f"{self.drop_value:.2f}."
            )
        token = "token 0" if (self.sink_first or 0) > 0.9 else "one token"
        ratio = f", {self.sink_ratio:.0f} × the median norm" if self.sink_ratio else ""
        return (
            f"{text} It is the sink ({token}{ratio}): without that token it is "
            f"{self.drop_value:.2f}."
        )


def entropy_valley(table: pd.DataFrame) -> EntropyValley | None:
    """Return the valley of prompt entropy over the layers of a profile; None if the curve has none
    that is clear of noise."""
    layers = whole_layers(table)
    layers = layers[layers["normalization"] == "raw"].set_index("layer").sort_index()

    def rows_of(metric: str, sink: str = "keep") -> pd.DataFrame:
        return layers[(layers["metric"] == metric) & (layers["sink"] == sink)]

    entropy = rows_of("prompt_entropy")
    if entropy.empty:
        return None
    low, high = (entropy.get(name) for name in INTERVAL)
    valley = find_valley(
        entropy["value"].to_numpy(float),
        low=None if low is None else low.to_numpy(float),
        high=None if high is None else high.to_numpy(float),
    )
    if valley is None or not valley.clear:
        return None
    layer = int(entropy.index[valley.place])
    depth = valley.depth.value

    def value_of(metric: str, sink: str = "keep") -> float | None:
        rows = rows_of(metric, sink)
        return float(rows["value"].loc[layer]) if len(rows) else None

    drop_value = value_of("prompt_entropy", "drop")
    drop_depth = None
    if drop_value is None or pd.isna(drop_value):
        drop_value = None
    else:
        drop_depth = max(0.0, valley.shoulder - drop_value)
    return EntropyValley(
        layer,
        str(entropy.loc[layer, "site"]),
        valley.value,
        valley.shoulder,
        depth,
        drop_value,
        drop_depth,
        value_of("sink_ratio"),
        value_of("sink_first"),
        None if drop_depth is None else drop_depth < (1 - _SINK_SHARE) * depth,
    )


@dataclass
class Profile(StoredRun):
    """A finished profile. `table` is tidy: one row per site, metric, normalization and sink
    setting. `prompts` has a row per prompt and site."""

    kind: ClassVar[str] = "profile"
    files: ClassVar[dict[str, str]] = {"profile": "table", "prompts": "prompts"}
    without_csv: ClassVar[tuple[str, ...]] = ("prompts",)

    table: pd.DataFrame
    manifest: dict[str, Any]
    prompts: pd.DataFrame
    path: Path | None = None

    @property
    def layers(self) -> list[int]:
        """Return the layers that were measured, the embeddings (0) first."""
        return sorted({int(layer) for layer in whole_layers(self.table)["layer"]})

    @property
    def best_layer(self) -> int:
        """Return the layer to read embeddings from, as `layerscope.select` chooses it without
        labels; its reason is `select(run).reason`."""
        return int(view(self.kind, "choose")(self).layer)

    def __getitem__(self, metric: str) -> pd.Series:
        """Return a metric by layer: `run["prompt_entropy"]`."""
        rows = whole_layers(self.curve(metric))
        return rows.set_index("layer")["value"].rename(metric)

    def curve(self, metric: str, normalization: str = "raw", sink: str = "keep") -> pd.DataFrame:
        """Return one metric over the sites: the place (layer, depth, site), the value and its
        interval."""
        table = self.table
        if metric not in set(table["metric"]):
            get_metric(metric)  # an unknown name gets its own error
            raise UnknownNameError("metric in this run", metric, set(table["metric"]))
        rows = table[
            (table["metric"] == metric)
            & (table["normalization"] == normalization)
            & (table["sink"] == sink)
        ]
        if rows.empty:
            raise RunFolderError(
                f"{metric} has no values for normalization={normalization!r}, sink={sink!r} in "
                "this run."
            )
        return rows[["layer", "depth", "site", *names(PROFILE, "value")]].reset_index(drop=True)

    def summary(self) -> dict[str, Any]:
        """Return the most important facts as plain values: the extremes of each metric, the valley,
        the sink."""
        extremes = {}
        for metric in self.table["metric"].unique():
            curve = self.curve(metric).dropna(subset=["value"])
            if len(curve):
                row = curve.iloc[-1]
                last = {"layer": int(row["layer"]), "value": float(row["value"])}
                extremes[metric] = {
                    **lowest_and_highest(curve["layer"], curve["value"]),
                    "last": last,
                }
        valley = entropy_valley(self.table)
        return {
            "model": self.name,
            "layers": self.manifest["model"]["n_blocks"],
            "prompts": self.manifest["counts"]["prompts"],
            "final_norm": self.manifest["conventions"]["final_norm"],
            "valley": None if valley is None else asdict(valley),
            "metrics": extremes,
            "undefined": self.manifest["counts"]["undefined"],
            **super().summary(),
        }

    def wide(
        self, metrics: Sequence[str] | None = None, *, normalization: str = "raw"
    ) -> pd.DataFrame:
        """Return a table with a row per layer and a column per metric; `… (sink dropped)` columns
        leave the sink token out."""
        chosen = list(self.table["metric"].unique()) if metrics is None else list(metrics)
        for name in chosen:
            self.curve(name, normalization)  # an unknown name gets its own error
        rows = whole_layers(self.table[self.table["normalization"] == normalization])
        titles = rows["metric"].where(rows["sink"] == "keep", rows["metric"] + " (sink dropped)")
        order = [title for name in chosen for title in (name, f"{name} (sink dropped)")]
        table = pivot(rows.assign(title=titles), "title").rename_axis(columns=None)
        return table[[title for title in order if title in table]]

    def plot(
        self,
        *others: Profile | str | Path,
        metrics: Sequence[str] | None = None,
        **options: Any,
    ) -> Figure:
        """Return curves of the metrics against depth as an Altair chart; other runs (or their
        folders) on the same axes.

        run.plot(); run.plot(other); run.plot(other, metrics=["prompt_entropy"], x="layer")
        """
        runs: list[Profile] = [self]
        for other in others:
            if isinstance(other, str | Path):
                runs.append(Profile.load(other))
            elif isinstance(other, Profile):
                runs.append(other)
            else:
                raise InvalidValueError(
                    f"plot takes runs or their folders, not {type(other).__name__}."
                )
        return view(self.kind, "plot")(runs, None if metrics is None else list(metrics), **options)

    def __repr__(self) -> str:
        counts = (
            count_of(self.manifest["counts"]["prompts"], "prompts"),
            count_of(self.table["site"].nunique(), "sites"),
            count_of(self.table["metric"].nunique(), "metrics"),
        )
        final_norm = self.manifest["conventions"]["final_norm"]
        return f"<Profile {self.name}: {', '.join(counts)}, final_norm={final_norm}>"
