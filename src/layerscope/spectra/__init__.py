"""Eigenvalues of many symmetric matrices, per device. Nothing else in the package knows how they are computed."""

from layerscope.spectra.precision import full_precision
from layerscope.spectra.solve import eigvalsh, joined, solve_together, solver_name
from layerscope.spectra.threads import side_by_side

__all__ = ["eigvalsh", "full_precision", "joined", "side_by_side", "solve_together", "solver_name"]
