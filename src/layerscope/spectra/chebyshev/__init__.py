"""An entropy without eigenvalues: Σ λ log λ through traces of polynomials, which need only products of matrices."""

from layerscope.spectra.chebyshev.entropy import approximate_entropy, entropy_bound

__all__ = ["approximate_entropy", "entropy_bound"]
