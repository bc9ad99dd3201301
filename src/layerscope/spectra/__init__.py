"""Eigenvalues of many symmetric matrices, per device. Nothing else in the package knows how they are computed."""

from layerscope.spectra.solve import eigvalsh, solver_name
from layerscope.spectra.threads import side_by_side

__all__ = ["eigvalsh", "side_by_side", "solver_name"]
