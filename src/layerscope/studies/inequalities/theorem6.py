"""Theorem 6: prompts whose tokens are all one unit vector v_i (minimal prompt entropy).

Printed: |e^{−S_2} − N³ / L²| ≤ ε with probability 1 − N² √(2π) e^{−D³ ε / (2 N⁸)}. Two slips: the mean of L equal rows is v_i
and not (N / L) v_i, and S_2 leaves the trace out. From the proof the exponent would be D L⁴ ε² / (2 N⁸); the larger ε is used.
"""

from __future__ import annotations

import numpy as np

from layerscope.studies.inequalities import pooled
from layerscope.studies.inequalities.base import Case, Rng, Statement
from layerscope.studies.inequalities.matrices import unit

KINDS = ("N=2, L=8, D=128", "N=4, L=4, D=64", "N=4, L=32, D=256", "N=8, L=64, D=512")


def draw(kind: str, rng: Rng) -> Case:
    """Mean vectors of N prompts of L equal unit tokens in random directions."""
    n, length, d = (int(part.split("=")[1]) for part in kind.split(", "))
    tokens = np.repeat(unit(rng.normal(size=(n, d)))[:, None, :], length, axis=1)
    as_printed = 2 * n**8 * pooled.level(n) / d**3
    as_proved = n**4 / length**2 * float(np.sqrt(2 * pooled.level(n) / d))
    return {"q": tokens.mean(axis=1), "n": n, "length": length, "d": d, "epsilon": max(as_printed, as_proved)}


def printed(case: Case) -> float:
    """ε − |e^{−S_2} − N³/L²|, S_2 as the proof has it."""
    return case["epsilon"] - abs(pooled.collisions(case["q"], divided=False) - case["n"] ** 3 / case["length"] ** 2)


def divided(case: Case) -> float:
    """The same with S_2 as Equation 1 has it."""
    return case["epsilon"] - abs(pooled.collisions(case["q"], divided=True) - case["n"] ** 3 / case["length"] ** 2)


_ALLOWED = 1 - pooled.PROBABILITY
STATEMENTS = (
    Statement("Theorem 6", "printed", "|e^{−S_2} − N³/L²| ≤ ε, no trace in S_2", KINDS, draw, printed, share=_ALLOWED, every=10),
    Statement(
        "Theorem 6", "trace divided", "|e^{−S_2} − N³/L²| ≤ ε, S_2 of Eq. 1", KINDS, draw, divided, share=_ALLOWED, every=10
    ),
    Statement(
        "Theorem 6",
        "corrected",
        "1/N ≤ e^{−S_2} ≤ 1/N + (1 − 1/N) max cos², S_2 of Eq. 1",
        KINDS,
        draw,
        pooled.both_bounds,
        nudge=pooled.nudge,
        every=10,
    ),
)
