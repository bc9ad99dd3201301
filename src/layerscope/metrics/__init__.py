"""Representation metrics: pure functions on tensors, and accumulators with `update`, `merge` and `compute`.

Imports only torch, numpy and the standard library. One file per idea; adding a metric is adding a file.
"""

from layerscope.metrics.base import Estimate, Metric, MetricInfo
from layerscope.metrics.entropy import NORMALIZATIONS, matrix_entropy, normalizer, spectrum_entropy
from layerscope.metrics.intervals import interval, many_intervals
from layerscope.metrics.options import Options
from layerscope.metrics.registry import expand_names, get_metric, metrics
from layerscope.metrics.rows import ROW_PREPARATIONS, prepare_rows
from layerscope.metrics.samples import PooledRows, PromptValues, ViewRows

__all__ = [
    "NORMALIZATIONS",
    "ROW_PREPARATIONS",
    "Estimate",
    "Metric",
    "MetricInfo",
    "Options",
    "PooledRows",
    "PromptValues",
    "ViewRows",
    "expand_names",
    "get_metric",
    "interval",
    "many_intervals",
    "matrix_entropy",
    "metrics",
    "normalizer",
    "prepare_rows",
    "spectrum_entropy",
]
