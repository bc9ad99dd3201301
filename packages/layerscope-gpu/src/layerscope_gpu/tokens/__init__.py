"""Kernels for token measures: states under a norm, prepared Gram matrices and rows."""

from layerscope_gpu.tokens.gram import measure_gram, measures_grams
from layerscope_gpu.tokens.normed import centered_states, normed_means
from layerscope_gpu.tokens.rows import measure_rows, measures_rows

__all__ = [
    "centered_states",
    "measure_gram",
    "measure_rows",
    "measures_grams",
    "measures_rows",
    "normed_means",
]
