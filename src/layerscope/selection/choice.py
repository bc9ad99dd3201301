"""What a selection answers: a layer, how it is read, and how sure that is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

# The keys of the answer that programs read, in this order; `extra` and the rest follow.
KEYS = (
    "layer",
    "site",
    "readout",
    "expected_gain",
    "ci_low",
    "ci_high",
    "risk_of_loss",
    "tied",
    "rule",
    "blocks_saved",
)


@dataclass
class Choice:
    """One layer to read, with what it is expected to gain over the last layer, in points (score × 100).

    `ci_low` and `ci_high` bound the gain at 95 %; `risk_of_loss` is the chance that the layer scores below the last one;
    `tied` are the layers that the evidence does not tell from the chosen one. `layers` is the number of blocks of the model,
    so that `layer == layers` is the last layer. Gains are None where a rule makes no claim about them.
    """

    layer: int
    site: str
    readout: str | None
    expected_gain: float | None
    ci_low: float | None
    ci_high: float | None
    risk_of_loss: float | None
    tied: list[int]
    rule: str
    blocks_saved: int
    layers: int = 0
    model: str = ""
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    abstained: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_last(self) -> bool:
        """Whether the answer is the last layer."""
        return self.layer == self.layers

    @property
    def compute_saved(self) -> float:
        """The share of the blocks that need not be run."""
        return self.blocks_saved / self.layers if self.layers else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, the documented keys first."""
        names = [*KEYS, "layers", "model", "reason", "warnings", "abstained", "extra"]
        out: dict[str, Any] = {}
        for name in names:
            value = getattr(self, name)
            out[name] = None if isinstance(value, float) and not math.isfinite(value) else value
        out["compute_saved"] = self.compute_saved
        return out

    def to_json(self, indent: int | None = 2) -> str:
        """The same as JSON."""
        return json.dumps(self.as_dict(), indent=indent, ensure_ascii=False, allow_nan=False)
