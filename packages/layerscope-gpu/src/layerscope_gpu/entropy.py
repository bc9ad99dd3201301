"""An entropy without eigenvalues: Σ λ log λ through traces of polynomials, which need only products
of matrices.

Six polynomials of a matrix, from five products, whose pairwise traces are those of all degrees up
to 12 and some up to 32.

With T_k the Chebyshev polynomials on [0, 1] and R_k = T_k − T_k(0), they are −4 R_1, R_2, −4 R_1
R_2, R_4, R_8 and R_8²; R_2k is 2 R_k² ± 4 R_k, and tr(A B) of two symmetric matrices is a sum over
their entries. All of them vanish with the matrix: so half-length numbers round each entry relative
to the matrix, not to 1, and rows of zeros (padding, a token left out) stay zeros and add nothing.

The weights are a least-squares fit of t log t on [0, 1]. What counts of its error e is Σ e(t_i) / Σ
t_i, and most eigenvalues are small where their mean, the share s of their bound, is small: so there
is a fit for every quarter octave of s, closer at small t the smaller s is, and between them weights
are interpolated. How much closer was chosen on spectra of language models' states, among fits whose
guaranteed error is at most 1.2e-3 / s.

On a GPU it waits for memory: float32 matrices are scaled and become float16 there (as many digits
as TF32, half the bytes), and what is summed is summed in float32. A CPU computes in the numbers it
is given, for tests: eigenvalues are faster there.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope_gpu import chebyshev as kernels
from layerscope_gpu.precision import half_products

COUNT = 6
PAIRS = [(i, j) for i in range(COUNT) for j in range(i, COUNT)]


def product(
    out: Tensor,
    a: Tensor,
    b: Tensor,
    scale: float = 1.0,
    plus: Tensor | None = None,
    times: float = 0.0,
) -> None:
    """`out` = scale · a b + times · plus, for batches of matrices; summed in float32 where they are
    float16."""
    if out.dtype == torch.float16 and not out.is_cuda:  # what tensor cores do, for tests
        made = scale * (a.float() @ b.float())
        out.copy_(made if plus is None else made.add_(plus, alpha=times))
    elif plus is None:
        torch.baddbmm(out, a, b, beta=0.0, alpha=scale, out=out)
    else:
        torch.baddbmm(plus, a, b, beta=times, alpha=scale, out=out)


def narrow(matrices: Tensor, by: Tensor, out: Tensor) -> None:
    """`out` (B, m, m) = matrices (B, n, n) · by (B,), with zeros around them where m > n."""
    if kernels.narrow(matrices, by, out):
        return
    n = matrices.shape[-1]
    if n < out.shape[-1]:
        out.zero_()
    torch.mul(matrices, _each(by, matrices), out=out[:, :n, :n])


def rescale(first: Tensor, second: Tensor, third: Tensor, by: Tensor, square: Tensor) -> None:
    """first · by → first; second · square + first → second and third. Matrices (B, m, m), numbers
    (B,)."""
    if kernels.rescale(first, second, third, by, square):
        return
    torch.mul(first, _each(by, first), out=first)
    torch.addcmul(first, second, _each(square, first), out=second)
    third.copy_(second)


def _each(numbers: Tensor, matrices: Tensor) -> Tensor:
    return numbers.to(torch.promote_types(matrices.dtype, torch.float32))[:, None, None]


def pair_sums(arrays: Tensor) -> Tensor:
    """tr(A_i A_j) for all i ≤ j of symmetric matrices (COUNT, B, m, m): (B, COUNT (COUNT + 1) / 2),
    float64."""
    found = kernels.pair_sums(arrays)
    if found is not None:
        return found
    given = arrays.float() if arrays.dtype == torch.float16 else arrays
    pairs = [(one, other) for i, one in enumerate(given) for other in given[i:]]
    # not as products of matrices, which a user may allow to lose digits
    return torch.stack(
        [(one * other).sum((-2, -1), dtype=torch.float64) for one, other in pairs], dim=-1
    )


def fill(arrays: Tensor, b: Tensor) -> None:
    """Make `arrays` (COUNT, B, n, n), which begin with H and H², the polynomials of H / b; b (B,)
    is at least H's eigenvalues."""
    one, two, three, four, eight, sixteen = arrays
    rescale(one, two, four, -8 / b, 8 / b.square())  # R_1 = 2 t, R_2 = 8 t² − 8 t
    product(three, one, two)
    product(four, two, two, scale=2.0, plus=four, times=4.0)  # in place: `four` holds R_2
    product(eight, four, four, scale=2.0, plus=four, times=4.0)
    product(sixteen, eight, eight)


_PER_OCTAVE = 4
_OCTAVES = 13
_POINTS = 3000


class Table(NamedTuple):
    """For shares 1, 2^-¼, … (S,): weights of the first trace and of all PAIRS (S, …), sup |e| (S,)
    and sup |e| / (t + s) (S,)."""

    shares: Tensor
    weights: Tensor
    largest: Tensor
    relative: Tensor


def features(t: Tensor) -> Tensor:
    """The basis's first polynomial and its products in pairs at points t (P,), float64: (P, 1 +
    len(PAIRS))."""
    arrays = t.new_zeros(COUNT, len(t), 1, 1)
    arrays[0, :, 0, 0], arrays[1, :, 0, 0] = t, t.square()
    fill(arrays, torch.ones_like(t))
    values = arrays.flatten(1)
    return torch.stack([values[0], *(values[i] * values[j] for i, j in PAIRS)], dim=-1)


@cache
def table() -> Table:
    """The fits: a tenth of a second, once."""
    angles = (torch.arange(_POINTS, dtype=torch.float64) + 0.5) * (torch.pi / _POINTS)
    t = (1 - angles.cos()) / 2
    given, wanted = features(t), t * t.log()
    shares = 2.0 ** -(torch.arange(_PER_OCTAVE * _OCTAVES + 1, dtype=torch.float64) / _PER_OCTAVE)

    def fit(share: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        close = ((t + share).pow(-0.5) * (t + 4 * share.square()).pow(-0.75)).unsqueeze(-1)
        # products of the basis depend on each other: of all weights that fit, the smallest
        fitted = torch.linalg.lstsq(
            close * given, close * wanted.unsqueeze(-1), rcond=1e-12, driver="gelsd"
        ).solution
        error = ((given @ fitted).squeeze(-1) - wanted).abs()
        return fitted.squeeze(-1), error.max(), (error / (t + share)).max()

    # one thread each: a fit by several took them 2 s on a host whose cores were compiling kernels
    with ThreadPoolExecutor(
        torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        found, largest, relative = zip(*pool.map(fit, shares), strict=True)
    return Table(shares, torch.stack(found), torch.stack(largest), torch.stack(relative))


def _between(values: Tensor, share: Tensor) -> Tensor:
    at = (-_PER_OCTAVE * share.log2()).clamp(0, len(values) - 1)
    below = at.nan_to_num().floor().long().clamp(max=len(values) - 2)
    part = (at - below).view(-1, *[1] * (values.ndim - 1))
    return torch.lerp(values[below], values[below + 1], part)


@cache
def _weights_on(device: torch.device) -> Tensor:
    return table().weights.to(device)


def weights(share: Tensor) -> Tensor:
    """Weights (B, 1 + len(PAIRS)) for matrices whose mean eigenvalue is `share` (B,) of the bound;
    NaN where the share is NaN."""
    return _between(_weights_on(share.device), share)


def bound(share: Tensor) -> Tensor:
    """What the entropy may be wrong by (B,), in nats: sup |e| / s, or sup (|e| / (t + s)) · 2,
    whichever is less."""
    known = table()
    s = share.cpu().unsqueeze(-1)
    every = torch.minimum(known.largest / s, known.relative * (1 + known.shares / s))
    at = (-_PER_OCTAVE * share.cpu().log2()).clamp(0, len(known.shares) - 1)
    near = 1 - (at.unsqueeze(-1) - torch.arange(len(known.shares))).abs()  # the same interpolation
    return (every * near.clamp(min=0)).sum(-1).to(share.device)


_CHUNK_BYTES = 2 * 2**30
_WIDENED = 1.002  # what is said of the largest eigenvalue, for the rounding of what it is said from


def entropy_bound(matrices: Tensor) -> Tensor:
    """What `approximate_entropy` may be wrong by (B,), in nats: at most 1.2e-3 · b n / tr K, with b
    ≥ λ_max.

    Rounding comes on top, but is little: in float16 at most 2e-4 nats or, where one direction holds
    most of the trace, 6 % of this bound was seen, and the two together stayed within the bound. In
    float32 it is 1e-5.
    """
    diagonal = _diagonal(matrices)
    b = _largest(matrices @ matrices, diagonal)
    return bound(_share(diagonal, b))


def approximate_entropy(matrices: Tensor, half: bool | None = None) -> Tensor:
    """−Σ p log p, p = λ / Σλ, of positive semidefinite matrices (B, n, n), float64; NaN where the
    trace is zero.

    `half` says whether to compute in float16, which is what float32 matrices on a GPU get unless
    told otherwise.
    """
    if half is None:
        half = matrices.is_cuda and matrices.dtype == torch.float32
    if not len(matrices):
        return matrices.new_empty(0, dtype=torch.float64)
    n = matrices.shape[-1] + -matrices.shape[-1] % 8 if half else matrices.shape[-1]
    step = max(1, _CHUNK_BYTES // ((2 if half else matrices.element_size()) * n * n * COUNT))
    return torch.cat([_chunk(part, n, half) for part in matrices.split(step)])


def _diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).double()


def _share(diagonal: Tensor, b: Tensor) -> Tensor:
    """The mean eigenvalue as a share of b (B,), rows of zeros not counted."""
    return diagonal.sum(-1) / ((diagonal != 0).sum(-1) * b)


def _largest(squared: Tensor, diagonal: Tensor) -> Tensor:
    """A bound on the largest eigenvalue of K (B,) from K²: λ² is at most its mean + √(rows − 1)
    standard deviations."""
    rows = (diagonal != 0).sum(-1).clamp(min=1)
    second, fourth = _diagonal(squared).sum(-1), pair_sums(squared.unsqueeze(0)).squeeze(-1)
    spread = ((rows - 1) * (rows * fourth - second.square())).clamp(min=0).sqrt()
    return _WIDENED * ((second + spread) / rows).sqrt()


def _chunk(matrices: Tensor, n: int, half: bool) -> Tensor:
    diagonal = _diagonal(matrices)
    unit = diagonal.amax(-1)
    unit = torch.where(unit > 0, unit, 1.0)
    arrays = matrices.new_empty(
        COUNT, len(matrices), n, n, dtype=torch.float16 if half else matrices.dtype
    )
    narrow(matrices, 1 / unit, arrays[0])  # entries of at most 1
    with half_products() if half else nullcontext():
        product(arrays[1], arrays[0], arrays[0])
        b = _largest(arrays[1], diagonal)
        b = torch.where(b > 0, b, 1.0)
        b = 8 / _eleven_bits(8 / b) if half else b
        fill(arrays, b)
    diagonal = diagonal / unit.unsqueeze(-1)
    trace = diagonal.sum(-1)
    sums = torch.cat([(-8 * trace / b).unsqueeze(-1), pair_sums(arrays)], dim=-1)
    value = torch.log(trace / b) - b / trace * (sums * weights(_share(diagonal, b))).sum(-1)
    return torch.where(trace > 0, value, torch.nan)


def _eleven_bits(x: Tensor) -> Tensor:
    """x rounded down to what float16 holds: rows of one length keep one diagonal, and its rounding
    would not average out."""
    digits, power = torch.frexp(x)
    return torch.ldexp((digits * 2048).floor(), power - 11)
