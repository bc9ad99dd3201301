"""x log x as a sum of logarithms that determinants give.

On [0, 1], x log x ≈ c x + Σ_k w_k log(1 + x / t_k). Summed over eigenvalues that is c tr K + Σ_k w_k log det(I + K / t_k),
and one Cholesky factor of K + t_k I holds that determinant for every leading block at once. The exact identity is the integral
x log x = x − ∫ [log(1 + x / t) − x / (1 + t)] dt; the poles t_k are a graded rule for it and the weights a least-squares fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

_HIGHEST, _STEP, _GRADING = 2.0, 0.85, 0.02  # log t_k = highest − step · k · (1 + grading · k): wider where less is asked for
_FLOOR = 1e-4  # the fit's error is a share of x + floor: eigenvalues near zero are many


@dataclass(frozen=True)
class LogSum:
    """Poles t, weights w, the linear term c, and the largest error as a share of x + floor."""

    poles: np.ndarray
    weights: np.ndarray
    linear: float
    error: float
    floor: float = _FLOOR

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """The approximation of x log x."""
        return self.linear * x + np.log1p(x[..., None] / self.poles) @ self.weights


@cache
def entropy_sum(terms: int = 22) -> LogSum:
    """The sum for x log x.

    >>> fit = entropy_sum()
    >>> fit.error < 2e-7
    True
    """
    k = np.arange(terms)
    poles = np.exp(_HIGHEST - _STEP * k * (1 + _GRADING * k))
    x = np.exp(np.concatenate([np.linspace(-40, -3, 1500), np.linspace(-3, 0, 1000)]))
    share = 1 / (x + _FLOOR)
    wanted = x * np.log(x)
    columns = np.concatenate([x[:, None], np.log1p(x[:, None] / poles)], axis=1)
    scale = np.concatenate([[1.0], poles])
    solved = np.linalg.lstsq(columns * scale * share[:, None], wanted * share, rcond=1e-15)[0] * scale
    error = float(np.abs((columns @ solved - wanted) * share).max())
    return LogSum(poles, solved[1:], float(solved[0]), error)
