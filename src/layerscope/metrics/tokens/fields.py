"""The names under which the numbers of single prompts are kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerscope.metrics.base import Metric

__all__ = ["field_of"]

FLAT = "flat_differences"
SINK_POSITION = "sink_position"
TOKEN_FIELDS = (
    "prompt_entropy.keep",
    "prompt_entropy.drop",
    "curvature.keep",
    "curvature.drop",
    FLAT,
    "sink_ratio.keep",
    SINK_POSITION,
)
"""What one pass over the tokens gives for the built-in metrics."""

_TOGETHER = ("prompt_entropy", "curvature", "sink_ratio", "sink_first")


def field_of(name: str, sink: str) -> str:
    """Return the field of a metric's values: with the sink token (`keep`) or without it
    (`drop`)."""
    return f"{name}.{sink}"


def is_measured_alone(metric: Metric) -> bool:
    """Return True for a token metric that is measured by its own `measure`."""
    return metric.measure is not None and metric.info.name not in _TOGETHER


def values_of(name: str, sink: str, numbers: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the prompts' values of a metric; of the sink, its position is kept."""
    if name == "sink_first":
        return (numbers[SINK_POSITION] == 0).astype(float)
    return numbers[field_of(name, sink)]
