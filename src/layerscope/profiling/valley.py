"""The valley of prompt entropy in a profile, and whether it is compression or one outlying token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.sites import whole_layers
from layerscope.core.valley import find_valley

# The valley counts as the sink's when dropping that token fills this share of it.
_SINK_SHARE = 0.5


@dataclass(frozen=True)
class EntropyValley:
    """The valley of prompt entropy, in nats; `drop_value` is its lowest point without the sink token."""

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

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def sentence(self) -> str:
        """What it is, in words."""
        text = (
            f"Prompt entropy has a valley at layer {self.layer} ({self.site}): {self.value:.2f} nats, "
            f"{self.depth:.2f} below its shoulders."
        )
        if self.is_sink is None or self.drop_value is None:
            return text
        where = "token 0" if (self.sink_first or 0) > 0.9 else "one token"
        ratio = f", {self.sink_ratio:.0f} × the median norm" if self.sink_ratio else ""
        if self.is_sink:
            return f"{text} It is the sink ({where}{ratio}): without that token it is {self.drop_value:.2f}."
        return f"{text} It is not the sink: without the largest token it is still {self.drop_value:.2f}."


def entropy_valley(table: pd.DataFrame) -> EntropyValley | None:
    """The valley of prompt entropy over the layers of a profile; None if the curve has none that is clear of noise."""
    layers = whole_layers(table)

    def curve(metric: str, sink: str = "keep", column: str = "value") -> pd.Series | None:
        rows = layers[(layers["metric"] == metric) & (layers["normalization"] == "raw") & (layers["sink"] == sink)]
        return rows.set_index("layer")[column].sort_index() if len(rows) and column in rows else None

    kept = curve("prompt_entropy")
    if kept is None:
        return None
    low, high = (curve("prompt_entropy", column=name) for name in ("ci_low", "ci_high"))
    bounds = {} if low is None or high is None else {"low": low.to_numpy(float), "high": high.to_numpy(float)}
    valley = find_valley(kept.to_numpy(float), **bounds)
    if valley is None or not valley.clear:
        return None
    layer, depth = int(kept.index[valley.place]), valley.depth.value
    site = str(layers.loc[layers["layer"] == layer, "site"].iloc[0])
    dropped, ratio, first = curve("prompt_entropy", "drop"), curve("sink_ratio"), curve("sink_first")
    drop_value = drop_depth = is_sink = None
    if dropped is not None and np.isfinite(dropped.loc[layer]):
        drop_value = float(dropped.loc[layer])
        drop_depth = max(0.0, valley.shoulder - drop_value)
        is_sink = bool(drop_depth < (1 - _SINK_SHARE) * depth)
    return EntropyValley(
        layer,
        site,
        valley.value,
        valley.shoulder,
        depth,
        drop_value,
        drop_depth,
        None if ratio is None else float(ratio.loc[layer]),
        None if first is None else float(first.loc[layer]),
        is_sink,
    )
