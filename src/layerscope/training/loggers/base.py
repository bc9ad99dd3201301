"""What a log of layers is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Logger(Protocol):
    """Takes rows as they are measured: step, site, layer, depth, metric, sink, value, n."""

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep the rows of one step."""

    def close(self) -> None:
        """No more will come."""


def tag(row: dict[str, Any]) -> str:
    """The name of a row's curve in a dashboard.

    >>> tag({"metric": "prompt_entropy", "sink": "drop", "layer": 3})
    'layers/prompt_entropy_sink_dropped/03'
    """
    sink = "_sink_dropped" if row["sink"] == "drop" else ""
    return f"layers/{row['metric']}{sink}/{row['layer']:02d}"
