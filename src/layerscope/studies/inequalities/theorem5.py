"""Theorem 5: prompts of L = D orthonormal tokens (maximal prompt entropy).

Printed: |e^{−S_2} − N / L²| ≤ ε with probability 1 − N² √(2π) e^{−D ε² / (2 N²)}.
"""

from __future__ import annotations

import numpy as np

from layerscope.studies.inequalities import pooled
from layerscope.studies.inequalities.base import Case, Rng, Statement

KINDS = ("N=2, D=256", "N=4, D=16", "N=8, D=64", "N=32, D=16")


def draw(kind: str, rng: Rng) -> Case:
    """Mean vectors of N prompts, each the rows of a uniformly random orthogonal matrix."""
    n, d = (int(part.split("=")[1]) for part in kind.split(", "))
    q = np.empty((n, d))
    for i in range(n):
        basis, upper = np.linalg.qr(rng.normal(size=(d, d)))
        q[i] = (basis * np.sign(np.diag(upper))).mean(axis=0)
    return {"q": q, "n": n, "d": d, "epsilon": n * float(np.sqrt(2 * pooled.level(n) / d))}


def printed(case: Case) -> float:
    """ε − |e^{−S_2} − N/L²|, S_2 as the proof has it."""
    return case["epsilon"] - abs(pooled.collisions(case["q"], divided=False) - case["n"] / case["d"] ** 2)


def divided(case: Case) -> float:
    """The same with S_2 as Equation 1 has it."""
    return case["epsilon"] - abs(pooled.collisions(case["q"], divided=True) - case["n"] / case["d"] ** 2)


def emptiness() -> float:
    """How many times N/L² the smallest ε is for which the printed probability promises anything: the statement is that weak."""
    settings = [[int(part.split("=")[1]) for part in kind.split(", ")] for kind in KINDS]
    return min(n * float(np.sqrt(2 * np.log(n**2 * np.sqrt(2 * np.pi)) / d)) / (n / d**2) for n, d in settings)


_ALLOWED = 1 - pooled.PROBABILITY
STATEMENTS = (
    Statement("Theorem 5", "printed", "|e^{−S_2} − N/L²| ≤ ε, no trace in S_2", KINDS, draw, printed, share=_ALLOWED, every=25),
    Statement(
        "Theorem 5", "trace divided", "|e^{−S_2} − N/L²| ≤ ε, S_2 of Eq. 1", KINDS, draw, divided, share=_ALLOWED, every=25
    ),
    Statement(
        "Theorem 5",
        "corrected",
        "1/N ≤ e^{−S_2} ≤ 1/N + (1 − 1/N) max cos², S_2 of Eq. 1",
        KINDS,
        draw,
        pooled.both_bounds,
        nudge=pooled.nudge,
        every=25,
    ),
)
