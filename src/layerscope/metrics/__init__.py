"""Representation metrics: pure functions on tensors, beside the facts that describe them.

Imports only torch, numpy, the standard library, `layerscope.spectra` and `layerscope.core`. Adding
a metric is adding a file (see base.py).
"""

from layerscope.metrics.base import (
    Estimate,
    Metric,
    MetricInfo,
    estimate_prompts,
    estimate_vectors,
    interval,
    many_intervals,
    normalized,
)
from layerscope.metrics.entropy import NORMALIZATIONS, matrix_entropy, normalizer, spectrum_entropy
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
from layerscope.metrics.vectors import ROW_PREPARATIONS, Options, SiteVectors, prepare_rows

__all__ = [
    "NORMALIZATIONS",
    "ROW_PREPARATIONS",
    "Estimate",
    "Metric",
    "MetricInfo",
    "Options",
    "SiteVectors",
    "estimate_prompts",
    "estimate_vectors",
    "expand_names",
    "get_metric",
    "in_reading_order",
    "interval",
    "main_metrics",
    "many_intervals",
    "matrix_entropy",
    "metric_title",
    "metrics",
    "normalized",
    "normalizer",
    "on_log_scale",
    "prepare_rows",
    "register",
    "shown_series",
    "spectrum_entropy",
]
