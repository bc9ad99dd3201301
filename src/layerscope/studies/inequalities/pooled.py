"""What Theorems 5 and 6 share: N prompts whose mean vectors q_i point in random directions, and S_2 with and without the trace.

Equation 1 divides the eigenvalues by the trace; the proofs of both theorems use S_2 = −log ‖Q Qᵀ‖² without doing so. Divided, a
common length of the q_i cancels: with u_i = q_i / ‖q_i‖ all that is left is e^{−S_2} = 1/N + (1/N²) Σ_{i≠j} ⟨u_i, u_j⟩².
"""

from __future__ import annotations

import numpy as np

from layerscope.studies.inequalities.base import Case, Rng
from layerscope.studies.inequalities.matrices import unit

PROBABILITY = 0.95  # each ε is chosen so that the printed bound promises this much
_TAIL = np.sqrt(2 * np.pi)


def collisions(q: np.ndarray, divided: bool) -> float:
    """e^{−S_2} of the rows of Q: ‖Q Qᵀ‖², divided by the squared trace where Equation 1 is followed."""
    gram = q @ q.T
    squares = float((gram**2).sum())
    return squares / float(np.trace(gram)) ** 2 if divided else squares


def level(n: int) -> float:
    """log(N² √(2π) / (1 − probability)), which both printed probabilities are solved for."""
    return float(np.log(n**2 * _TAIL / (1 - PROBABILITY)))


def both_bounds(case: Case) -> float:
    """Margin of 1/N ≤ e^{−S_2} ≤ 1/N + (1 − 1/N) max⟨u_i, u_j⟩², with the trace divided out; needs rows q_i of one length."""
    q = case["q"]
    n, value = len(q), collisions(q, divided=True)
    cosines = unit(q) @ unit(q).T
    largest = float(np.abs(cosines - np.diag(np.diag(cosines))).max()) if n > 1 else 0.0
    return min(value - 1 / n, 1 / n + (1 - 1 / n) * largest**2 - value)


def nudge(case: Case, rng: Rng, step: float) -> Case:
    """Rows turned a little, their lengths kept."""
    q = case["q"]
    length = np.linalg.norm(q, axis=1, keepdims=True)
    return {**case, "q": length * unit(q / length + step * rng.normal(size=q.shape) / np.sqrt(q.shape[1]))}
