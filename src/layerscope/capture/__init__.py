"""One forward pass, states at chosen sites, reduced inside the hooks. Imports only torch, numpy and
the standard library."""

from layerscope.capture.batches import (
    Batch,
    fits_on_device,
    make_batch,
    plan_batches,
    run_batches,
    token_budget,
)
from layerscope.capture.hooks import (
    FINAL_NORMS,
    Anatomy,
    Capture,
    FinalNorm,
    Tap,
    check_residual,
    expand_sites,
)
from layerscope.capture.reduce import BatchReduction, Reduced, Reducer
from layerscope.core.sites import DEFAULT_SITES, Site

__all__ = [
    "DEFAULT_SITES",
    "FINAL_NORMS",
    "Anatomy",
    "Batch",
    "BatchReduction",
    "Capture",
    "FinalNorm",
    "Reduced",
    "Reducer",
    "Site",
    "Tap",
    "check_residual",
    "expand_sites",
    "fits_on_device",
    "make_batch",
    "plan_batches",
    "run_batches",
    "token_budget",
]
