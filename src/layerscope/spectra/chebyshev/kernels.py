"""Passes over float16 matrices as kernels of our own, which read each entry once (of sums over symmetric ones, half of them).

Used on CUDA where NVRTC can compile them and a first try is right; everything else takes torch's operators.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope.spectra.chebyshev.source import EACH, SOURCE, SUMS_BLOCKS, SUMS_THREADS
from layerscope.spectra.cuda.kernels import launch
from layerscope.spectra.cuda.libraries import UnusableError
from layerscope.spectra.precision import full_precision

_THREADS = 256


def narrow(matrices: Tensor, by: Tensor, out: Tensor) -> None:
    """`out` (B, m, m) = matrices (B, n, n) · by (B,), with zeros around them where m > n."""
    if matrices.dtype == torch.float32 and _ours(out) and matrices.is_contiguous() and matrices.data_ptr() % 16 == 0:
        _narrow(matrices, by, out)
        return
    n = matrices.shape[-1]
    if n < out.shape[-1]:
        out.zero_()
    torch.mul(matrices, _each(by, matrices), out=out[:, :n, :n])


def rescale(first: Tensor, second: Tensor, third: Tensor, by: Tensor, square: Tensor) -> None:
    """first · by → first; second · square + first → second and third. Matrices (B, m, m), numbers (B,)."""
    if _ours(first):
        _rescale(first, second, third, by, square)
        return
    torch.mul(first, _each(by, first), out=first)
    torch.addcmul(first, second, _each(square, first), out=second)
    third.copy_(second)


def pair_sums(arrays: Tensor) -> Tensor:
    """tr(A_i A_j) for all i ≤ j of symmetric matrices (COUNT, B, m, m): (B, COUNT (COUNT + 1) / 2), float64."""
    if len(arrays) in (1, 6) and _ours(arrays):
        return _pair_sums(arrays)
    rows = arrays.permute(1, 2, 0, 3)
    rows = rows.float() if rows.dtype == torch.float16 else rows
    with full_precision():
        every = (rows @ rows.mT).sum(1, dtype=torch.float64)  # row by row: long sums in float32 lose digits
    i, j = torch.triu_indices(len(arrays), len(arrays), device=arrays.device)
    return every[:, i, j]


def _each(numbers: Tensor, matrices: Tensor) -> Tensor:
    return numbers.to(torch.promote_types(matrices.dtype, torch.float32))[:, None, None]


def _ours(matrices: Tensor) -> bool:
    """Whether the kernels can take these."""
    if not matrices.is_cuda or matrices.dtype != torch.float16 or matrices.shape[-1] % 8:
        return False
    return matrices.is_contiguous() and matrices.data_ptr() % 16 == 0 and usable(matrices.device.index)


def _blocks(matrices: Tensor) -> int:
    count, m = matrices.shape[0], matrices.shape[-1]
    return count * -(-(m * m // 8) // (_THREADS * EACH))


def _narrow(matrices: Tensor, by: Tensor, out: Tensor) -> None:
    arguments: list[Tensor | int] = [matrices, by.float(), out, matrices.shape[-1], out.shape[-1]]
    launch(SOURCE, "narrow", _blocks(out), _THREADS, 0, arguments)


def _rescale(first: Tensor, second: Tensor, third: Tensor, by: Tensor, square: Tensor) -> None:
    arguments: list[Tensor | int] = [first, second, third, by.float(), square.float(), first.shape[-1]]
    launch(SOURCE, "rescale", _blocks(first), _THREADS, 0, arguments)


def _pair_sums(arrays: Tensor) -> Tensor:
    kinds, count, m = arrays.shape[:3]
    out = torch.empty(count, SUMS_BLOCKS, kinds * (kinds + 1) // 2, dtype=torch.float32, device=arrays.device)
    launch(SOURCE, f"sums_of_{kinds}", count * SUMS_BLOCKS, SUMS_THREADS, 0, [arrays, out, count, m, SUMS_BLOCKS])
    return out.sum(1, dtype=torch.float64)


@cache
def usable(index: int) -> bool:
    """Whether the kernels work on a device: compiled and tried once."""
    try:
        return right(torch.device("cuda", index))
    except (UnusableError, OSError, AttributeError, RuntimeError):
        return False


def right(device: torch.device) -> bool:
    """Whether the kernels give what they should on small matrices."""
    x = torch.linspace(-1.0, 1.0, 3 * 21 * 21, device=device).view(3, 21, 21)
    given, by = x + x.mT, torch.tensor([0.5, 1.0, 0.3], device=device)
    arrays = torch.full((6, 3, 24, 24), torch.nan, dtype=torch.float16, device=device)
    for k in range(6):
        _narrow(given, by / (k + 1), arrays[k])
        known = (given * (by / (k + 1))[:, None, None]).half()
        if not torch.equal(arrays[k, :, :21, :21], known) or arrays[k, :, 21:].any() or arrays[k, :, :, 21:].any():
            return False
    first, second, third = arrays[:3].clone()
    _rescale(first, second, third, -by, by.square())
    scaled = -arrays[0].double() * by[:, None, None]
    known = scaled + arrays[1].double() * by.square()[:, None, None]
    found, sums = (first, second, third), _pair_sums(arrays)
    flat = arrays.double().flatten(2).transpose(0, 1)
    i, j = torch.triu_indices(6, 6, device=device)
    return (
        all(torch.allclose(a.double(), b, rtol=2e-3, atol=1e-3) for a, b in zip(found, (scaled, known, known), strict=True))
        and torch.allclose(sums, (flat @ flat.mT)[:, i, j], rtol=1e-4, atol=1e-4)
        and torch.allclose(_pair_sums(arrays[:1]), flat[:, :1].square().sum(-1), rtol=1e-4, atol=1e-4)
    )
