"""Where prompt entropy dips between the ends, and whether the dip is compression or one outlying token."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.sites import whole_layers

# A dip smaller than this share of the shoulders is the ordinary unevenness of a curve.
_LEAST_DEPTH = 0.10
# The dip counts as the sink's when dropping that token fills this share of it.
_SINK_SHARE = 0.5


@dataclass(frozen=True)
class Valley:
    """The lowest point of a curve between two higher shoulders, in nats; `drop_value` is that point without the sink token."""

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


def _dip(values: np.ndarray) -> tuple[int, float, float] | None:
    """(position, shoulder, depth) of the deepest point below the lower of its two shoulders."""
    if len(values) < 3 or not np.isfinite(values).all():
        return None
    left = np.maximum.accumulate(values)
    right = np.maximum.accumulate(values[::-1])[::-1]
    shoulder = np.minimum(left, right)
    depth = shoulder - values
    at = int(np.argmax(depth))
    return (at, float(shoulder[at]), float(depth[at])) if depth[at] > 0 else None


def find_valley(table: pd.DataFrame) -> Valley | None:
    """The valley of prompt entropy over the layers of a profile, or None if the curve has none worth the name."""
    layers = whole_layers(table)

    def curve(metric: str, sink: str = "keep") -> pd.Series | None:
        rows = layers[(layers["metric"] == metric) & (layers["normalization"] == "raw") & (layers["sink"] == sink)]
        return rows.set_index("layer")["value"].sort_index() if len(rows) else None

    kept = curve("prompt_entropy")
    if kept is None:
        return None
    dip = _dip(kept.to_numpy())
    if dip is None or dip[2] < _LEAST_DEPTH * dip[1]:
        return None
    at, shoulder, depth = dip
    layer = int(kept.index[at])
    site = str(layers.loc[layers["layer"] == layer, "site"].iloc[0])
    dropped, ratio, first = curve("prompt_entropy", "drop"), curve("sink_ratio"), curve("sink_first")
    drop_value = drop_depth = is_sink = None
    if dropped is not None and np.isfinite(dropped.loc[layer]):
        drop_value = float(dropped.loc[layer])
        drop_depth = max(0.0, shoulder - drop_value)
        is_sink = bool(drop_depth < (1 - _SINK_SHARE) * depth)
    return Valley(
        layer,
        site,
        float(kept.loc[layer]),
        shoulder,
        depth,
        drop_value,
        drop_depth,
        None if ratio is None else float(ratio.loc[layer]),
        None if first is None else float(first.loc[layer]),
        is_sink,
    )
