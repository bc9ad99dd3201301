"""Student's t distribution for whole degrees of freedom, in closed form: few families give few degrees of freedom."""

from __future__ import annotations

import math


def cdf(t: float, df: int) -> float:
    """P(T ≤ t).

    >>> round(cdf(2.776445, 4), 4)
    0.975
    """
    if df < 1:
        raise ValueError(f"degrees of freedom must be at least 1, not {df}")
    angle = math.atan(t / math.sqrt(df))
    cosine = math.cos(angle)
    term = total = math.sin(angle) if df % 2 == 0 else math.sin(angle) * cosine
    for k in range(2 if df % 2 == 0 else 3, df - 1, 2):
        term *= (k - 1) / k * cosine**2
        total += term
    if df % 2 == 0:
        return 0.5 + total / 2
    return 0.5 + (angle + (total if df > 1 else 0.0)) / math.pi


def quantile(p: float, df: int) -> float:
    """The t with P(T ≤ t) = p.

    >>> round(quantile(0.975, 3), 3)
    3.182
    """
    low, high = -1e4, 1e4
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if cdf(middle, df) < p else (low, middle)
    return (low + high) / 2
