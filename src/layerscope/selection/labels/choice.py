"""The answer of a selection with labels: a choice, and all that it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from layerscope.selection.choice import Choice
from layerscope.store.atomic import plain


@dataclass
class LabelledChoice(Choice):
    """A layer and readout chosen with labels. Scores and gains are in points (score × 100).

    `table` has a row per layer and readout: its score with standard error, the smoothed score that the choice followed, and
    whether it ties with the best. `reference_score` is the last layer's under the default readout; `expected_score` adds the
    expected gain. `gain_same_readout` is the expected gain over the last layer of the chosen readout. `label_free` is the answer
    without labels, where a profile was given. For classes `extra` has the probe's accuracy.
    """

    labels: dict[str, Any] = field(default_factory=dict)
    metric: str = ""
    reference_score: float = float("nan")
    expected_score: float | None = None
    gain_same_readout: float | None = None
    candidates: int = 0
    tied_candidates: int = 0
    label_free: dict[str, Any] | None = None
    conventions: dict[str, Any] = field(default_factory=dict)
    table: pd.DataFrame = field(default_factory=pd.DataFrame, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the table is left out (`to_dict(table=True)` has it)."""
        names = ("labels", "metric", "reference_score", "expected_score", "gain_same_readout", "candidates", "tied_candidates")
        return plain({**super().as_dict(), **{name: getattr(self, name) for name in (*names, "label_free", "conventions")}})

    def to_dict(self, table: bool = False) -> dict[str, Any]:
        """The same, with every candidate's row where asked."""
        out = self.as_dict()
        if table:
            out["table"] = plain(self.table.to_dict(orient="records"))
        return out
