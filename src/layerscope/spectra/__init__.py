"""Eigenvalues of many symmetric matrices, per device. Nothing else in the package knows how they are computed."""

from layerscope.spectra.solve import eigvalsh, solver_name

__all__ = ["eigvalsh", "solver_name"]
