"""Token measures of prompts with more tokens than dimensions, from states that are centred already: two D×D products each."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope.metrics.options import Options
from layerscope.metrics.tokens.measures import PreparedTokens, Space, centred_gram
from layerscope.metrics.tokens.norms import TokenFacts
from layerscope.metrics.tokens.row_kernel import measure_rows
from layerscope.spectra.precision import half_products


def prepare_long(
    centred: Tensor,
    facts: TokenFacts,
    options: Options,
    *,
    entropy: bool = True,
    curvature: bool = True,
    space: Space | None = None,
) -> PreparedTokens:
    """`prepare_tokens` from states (B, T, D), float32, centred without the sink; rows centred or centred-unit.

    The matrices are D×D: they have the nonzero eigenvalues of the T×T ones. Products are rounded as `centred_gram` says.
    """
    made = measure_rows(centred, facts, options, _rows_in(centred, facts.dtype, options) if entropy else None)
    texts, _, width = centred.shape
    shape = centred.new_empty(1).expand(texts, width, width)  # what `space` is asked for, without its memory
    matrices = {}
    for name in tuple(made.rows):
        out = shape.new_empty(shape.shape) if space is None else space(shape)
        rows = made.rows.pop(name)
        matrices[name] = wide_product(rows, out) if rows.dtype == torch.float16 else centred_gram(rows.mT, facts.dtype, out)
    both = dict(zip(("keep", "drop"), made.curvature, strict=True)) if curvature else {}
    return PreparedTokens(matrices, both, made.flat if curvature else torch.zeros_like(made.flat))


def wide_product(rows: Tensor, out: Tensor) -> Tensor:
    """XᵀX of float16 rows (B, T, D), summed and kept in float32; on CUDA, since torch 2.8."""
    with half_products():
        return torch.bmm(rows.mT, rows, out_dtype=torch.float32, out=out)


def _rows_in(centred: Tensor, dtype: torch.dtype, options: Options) -> torch.dtype:
    """What rows are multiplied in. float16 has as many digits as TF32 and is twice as fast; rows of length 1 fit its range."""
    if dtype not in (torch.bfloat16, torch.float16) or options.rows != "centered-unit" or not centred.is_cuda:
        return torch.float32
    return torch.float16 if wide_products(centred.device.index or 0) else torch.float32


@cache
def wide_products(index: int) -> bool:
    """Whether `wide_product` works on a device, tried once on numbers whose products float16 cannot hold."""
    try:
        rows = (1 + torch.arange(48, device=torch.device("cuda", index)).view(1, 6, 8) / 1024).half()
        want = (rows.double().unsqueeze(-1) * rows.double().unsqueeze(-2)).sum(1).float()
        return torch.equal(wide_product(rows, torch.empty_like(want)), want)
    except (RuntimeError, TypeError):  # not in this torch, or not on this device
        return False
