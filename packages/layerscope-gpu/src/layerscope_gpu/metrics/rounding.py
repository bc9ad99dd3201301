"""The effect of float32's rounding on a function of a spectrum, and a test if it can show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error

FAST_DOUBLES = ((6, 0), (7, 0), (8, 0), (9, 0), (10, 0))
"""Compute capabilities with float64 at half the rate of float32 or better; on others it is 32 to 64
times slower."""

# Of the largest eigenvalue. Single ones are missed by up to 4e-7, in either direction: what is
# common to all is far less.
FLOAT32_ERROR = 1e-7
# float32 will do for the folds if it moves the whole data's value by less than this share of the
# standard error,
SHARE_OF_ERROR = 0.25
# and for the value itself if it moves it by no more than this: nats of an entropy, a share of
# anything else.
NATS = 2e-5
SHARE = 2e-4


def fast_doubles(device: torch.device) -> bool:
    """Return True if products of float64 matrices are about as fast as those of float32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) in FAST_DOUBLES


def moved_by_rounding(function: Callable[[Tensor], Tensor], eigenvalues: Tensor) -> Tensor:
    """Return how far a function of spectra (…, n) moves if a float32 solver misses every eigenvalue
    in the same direction.

    Small eigenvalues suffer most, and rounding that lifts or lowers all of them spreads or narrows
    a spectrum the most.
    """
    step = FLOAT32_ERROR * eigenvalues.amax(-1, keepdim=True)
    here = function(eigenvalues)
    up = function(eigenvalues + step)
    down = function((eigenvalues - step).clamp(min=0))
    return torch.maximum((up - here).abs(), (down - here).abs())


def will_do(moved: float, left_out: Sequence[float]) -> bool:
    """Return True if folds that are each off by so much give the standard error."""
    return moved * math.sqrt(len(left_out)) <= SHARE_OF_ERROR * jackknife_error(left_out)
