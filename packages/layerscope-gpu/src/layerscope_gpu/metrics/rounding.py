"""The effect of float32's rounding on functions of a spectrum, and a test if it is negligible."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error

FAST_DOUBLES = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities with float64 at half the rate of float32 or better; on others float64 is 32
to 64 times slower."""

# The error that all eigenvalues have in common, as a share of the largest. Single eigenvalues are
# off by up to 4e-7, in either direction.
FLOAT32_ERROR = 1e-7
# The folds stay in float32 if that changes the value of all rows by less than this share of the
# standard error.
SHARE_OF_ERROR = 0.25
# The value itself stays in float32 if that changes it by no more than this: nats of an entropy, a
# share of any other value.
NATS = 2e-5
SHARE = 2e-4


def fast_doubles(device: torch.device) -> bool:
    """Return True if products of float64 matrices are about as fast as those of float32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_DOUBLES


def moved_by_rounding(function: Callable[[Tensor], Tensor], eigenvalues: Tensor) -> Tensor:
    """Return the change of a function of spectra (…, n) if all eigenvalues have the same error.

    An error in one direction changes the small eigenvalues, and so the width of a spectrum, the
    most.
    """
    step = FLOAT32_ERROR * eigenvalues.amax(-1, keepdim=True)
    value = function(eigenvalues)
    up = function(eigenvalues + step)
    down = function((eigenvalues - step).clamp(min=0))
    return torch.maximum((up - value).abs(), (down - value).abs())


def is_negligible(moved: float, left_out: Sequence[float]) -> bool:
    """Return True if an error of `moved` in each fold hardly changes the standard error."""
    return moved * math.sqrt(len(left_out)) <= SHARE_OF_ERROR * jackknife_error(left_out)
