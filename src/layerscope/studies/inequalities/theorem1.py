"""Theorem 1 (Theorem 4 of the appendix): effective rank and entropy.

The printed proof takes σ_i² = λ_i and σ_i ≤ 1 to say that λ is majorised by σ. But the σ_i sum to one only after a division, and
the λ_i only after another: majorisation compares vectors of equal sums, and σ_i² / Σσ² is the *more* concentrated one.
"""

from __future__ import annotations

import numpy as np

from layerscope.studies.inequalities.base import Case, Statement
from layerscope.studies.inequalities.matrices import KINDS, draw_matrix, effective_rank, nudge_matrix, renyi, shares


def printed(case: Case) -> float:
    """S_1 − log EffRank."""
    return renyi(shares(case["z"]), 1.0) - float(np.log(effective_rank(case["z"])))


def corrected(case: Case) -> float:
    """The smaller of log EffRank − S_1 and log rank − log EffRank."""
    z = case["z"]
    log_rank = float(np.log(effective_rank(z)))
    return min(log_rank - renyi(shares(z), 1.0), float(np.log(np.linalg.matrix_rank(z))) - log_rank)


STATEMENTS = (
    Statement("Theorem 1", "printed", "EffRank(Z) ≤ exp(S_1(Z))", KINDS, draw_matrix, printed, nudge_matrix),
    Statement("Theorem 1", "corrected", "exp(S_1(Z)) ≤ EffRank(Z) ≤ rank(Z)", KINDS, draw_matrix, corrected, nudge_matrix),
)
