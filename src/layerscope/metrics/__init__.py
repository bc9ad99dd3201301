"""Representation metrics: pure functions on tensors, and accumulators with `update` and
`compute`.

Imports only torch, numpy, the standard library and `layerscope.core`. Adding a metric is adding a
file (see base.py).
"""

from layerscope.metrics.base import Estimate, Metric, MetricInfo, PromptMean
from layerscope.metrics.entropy import NORMALIZATIONS, matrix_entropy, normalizer, spectrum_entropy
from layerscope.metrics.intervals import interval, many_intervals
from layerscope.metrics.options import ROW_PREPARATIONS, Options, prepare_rows
from layerscope.metrics.registry import (
    expand_names,
    get_metric,
    in_reading_order,
    main_metrics,
    metric_title,
    metrics,
    on_log_scale,
    register,
    shown_series,
)
from layerscope.metrics.samples import PooledRows, PromptValues, ViewRows

__all__ = [
    "NORMALIZATIONS",
    "ROW_PREPARATIONS",
    "Estimate",
    "Metric",
    "MetricInfo",
    "Options",
    "PooledRows",
    "PromptMean",
    "PromptValues",
    "ViewRows",
    "expand_names",
    "get_metric",
    "in_reading_order",
    "interval",
    "main_metrics",
    "many_intervals",
    "matrix_entropy",
    "metric_title",
    "metrics",
    "normalizer",
    "on_log_scale",
    "prepare_rows",
    "register",
    "shown_series",
    "spectrum_entropy",
]
