"""Appendix B and Proposition 1: the LogDet bound, the remark on α, and nearly orthogonal random
vectors.
"""

from __future__ import annotations

import numpy as np

from layerscope.core.statistics import Array
from layerscope_paper.atlas.reproduce.base import Row

ALPHAS = (0.5, 1.0, 2.0, 4.0)
DIMENSIONS = (2, 3, 8, 64, 1024)
EPSILONS = tuple(np.linspace(0.02, 0.98, 49))
_NODES = 20001


def logdet_entropy(eigenvalues: Array) -> float:
    """Return log det K − log 2, as Appendix B prints it."""
    return float(np.log(eigenvalues).sum() - np.log(2))


def shannon(eigenvalues: Array) -> float:
    """Return S₁ of Equation 1: the eigenvalues are divided by their sum first."""
    p = eigenvalues / eigenvalues.sum()
    return float(-(p * np.log(p)).sum())


def weight_of_small(alpha: float) -> float:
    """Return the share of the smaller half of 100 eigenvalues λᵢ = 1/i in Σ pᵢ^α."""
    powers = np.arange(1, 101, dtype=float) ** -alpha
    return float(powers[50:].sum() / powers.sum())


def wide_angle(dimension: int, epsilon: float) -> float:
    """Return P(|⟨u, v⟩| > ε) of two independent uniform unit vectors: ∫ sin^(D−2) over the angles
    that are too small."""

    def mass(end: float) -> float:
        angles = np.linspace(0.0, end, _NODES)
        heights = np.sin(angles) ** (dimension - 2)
        return float(((heights[1:] + heights[:-1]) / 2).sum() * (angles[1] - angles[0]))

    return mass(float(np.arccos(epsilon))) / mass(np.pi / 2)


def printed_tail(dimension: int, epsilon: float) -> float:
    """Return the bound of Proposition 1 for one pair: √(2π) e^(−Dε²/2)."""
    return float(np.sqrt(2 * np.pi) * np.exp(-dimension * epsilon**2 / 2))


def rows() -> list[Row]:
    """Return each statement as printed, with its conditions in the note."""
    spectrum = np.array([10.0, 10.0])
    excess = logdet_entropy(spectrum) - shannon(spectrum)
    divided = logdet_entropy(spectrum / spectrum.sum()) - shannon(spectrum)
    small = [weight_of_small(alpha) for alpha in ALPHAS]
    by_alpha = ", ".join(
        f"α = {alpha:g}: {weight:.3f}" for alpha, weight in zip(ALPHAS, small, strict=True)
    )
    ratios = {d: max(wide_angle(d, e) / printed_tail(d, e) for e in EPSILONS) for d in DIMENSIONS}
    worst = max(ratios.values())
    dimension = int(np.ceil(2 * np.log(1000**2 * np.sqrt(2 * np.pi)) / 0.1**2))
    scale_note = (
        f"claim: LogDet entropy bounds S₁ from below; here it is {logdet_entropy(spectrum):.2f}, "
        f"S₁ = log 2 = {shannon(spectrum):.2f}. It depends on the scale of K, which S₁ does not see"
    )
    divided_note = (
        "with K divided by its trace it holds for every K, and says nothing: the left side is at "
        "most −log 2, S₁ at least 0"
    )
    weight_note = (
        "claim: with larger α smaller eigenvalues contribute more; it is the other way round "
        f"({by_alpha})"
    )
    angle_note = (
        "of one pair, over 49 values of ε; below 1 for each of these D, so the union over pairs "
        "holds too. It depends on uniform directions, which states of a model do not have, and is "
        f"empty in few dimensions: 1000 vectors and ε = 0.1 need D > {dimension:,}"
    )
    weight = small[-1] - small[0]
    weight_name = "weight of the smaller half, α = 4 − α = 0.5"
    return [
        Row("K = 10·I₂", "LogDet − S₁", excess, excess <= 0, scale_note),
        Row("K = 10·I₂, trace 1", "LogDet − S₁", divided, divided <= 0, divided_note),
        Row("λᵢ = 1/i, n = 100", weight_name, weight, weight > 0, weight_note),
        Row(
            f"D = {', '.join(map(str, DIMENSIONS))}",
            "Proposition 1: exact / allowed, worst",
            worst,
            worst <= 1,
            angle_note,
        ),
    ]
