"""Six polynomials of a matrix, from five products, whose pairwise traces are those of all degrees up to 12 and some up to 32.

With T_k the Chebyshev polynomials on [0, 1] and R_k = T_k − T_k(0), they are −4 R_1, R_2, −4 R_1 R_2, R_4, R_8 and R_8²; R_2k is
2 R_k² ± 4 R_k, and tr(A B) of two symmetric matrices is a sum over their entries. All of them vanish with the matrix: so
half-length numbers round each entry relative to the matrix, not to 1, and rows of zeros (padding, a token left out) stay zeros
and add nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.spectra.chebyshev.kernels import rescale

COUNT = 6
PAIRS = [(i, j) for i in range(COUNT) for j in range(i, COUNT)]


def product(out: Tensor, a: Tensor, b: Tensor, scale: float = 1.0, plus: Tensor | None = None, times: float = 0.0) -> None:
    """`out` = scale · a b + times · plus, for batches of matrices; summed in float32 where they are float16."""
    if out.dtype == torch.float16 and not out.is_cuda:  # what tensor cores do, for tests
        made = scale * (a.float() @ b.float())
        out.copy_(made if plus is None else made.add_(plus, alpha=times))
    elif plus is None:
        torch.baddbmm(out, a, b, beta=0.0, alpha=scale, out=out)
    else:
        torch.baddbmm(plus, a, b, beta=times, alpha=scale, out=out)


def fill(arrays: Tensor, b: Tensor) -> None:
    """Make `arrays` (COUNT, B, n, n), which begin with H and H², the polynomials of H / b; b (B,) is at least H's eigenvalues."""
    one, two, three, four, eight, sixteen = arrays
    rescale(one, two, four, -8 / b, 8 / b.square())  # R_1 = 2 t, R_2 = 8 t² − 8 t
    product(three, one, two)
    product(four, two, two, scale=2.0, plus=four, times=4.0)  # in place: `four` holds R_2
    product(eight, four, four, scale=2.0, plus=four, times=4.0)
    product(sixteen, eight, eight)
