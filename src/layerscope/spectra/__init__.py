"""Eigenvalues of many symmetric matrices, per device. Nothing else in the package knows how they
are computed."""

from layerscope.spectra.execution import full_precision, map_concurrently, to_device
from layerscope.spectra.solve import eigvalsh, solvers_used, usable_solvers

__all__ = [
    "eigvalsh",
    "full_precision",
    "map_concurrently",
    "solvers_used",
    "to_device",
    "usable_solvers",
]
