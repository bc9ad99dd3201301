"""Eigenvalues of many symmetric matrices, per device. Nothing else in the package knows how they are computed."""

from layerscope.spectra.execution import Sent, beside, full_precision, placed, side_by_side
from layerscope.spectra.solve import eigvalsh, joined, solve_together, solvers_used, usable_solvers

__all__ = [
    "Sent",
    "beside",
    "eigvalsh",
    "full_precision",
    "joined",
    "placed",
    "side_by_side",
    "solve_together",
    "solvers_used",
    "usable_solvers",
]
