"""Token measures of prompts with more tokens than dimensions, on a GPU with layerscope-gpu: two D×D products each.

A kernel prepares the rows of a prompt with the sink token kept and dropped; nobody forms their T×T Gram matrices. Other devices
take the direct formulas of `measures.py`.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from layerscope.metrics.options import Options
from layerscope.metrics.tokens.measures import PreparedTokens, Space, centered_gram, has_kernel
from layerscope.metrics.tokens.norms import TokenFacts
from layerscope.spectra import faster
from layerscope.spectra.execution import half_products


def usable_for_rows(device: torch.device, options: Options) -> bool:
    """Whether `prepare_long` does what is asked."""
    gpu = faster.on(device)
    return gpu is not None and has_kernel(options) and gpu.tokens.measures_rows(device)


def prepare_long(
    centered: Tensor,
    facts: TokenFacts,
    options: Options,
    *,
    entropy: bool = True,
    curvature: bool = True,
    space: Space | None = None,
) -> PreparedTokens:
    """`prepare_tokens` from states (B, T, D), float32, centered without the sink; rows centered or centered-unit.

    The matrices are D×D: they have the nonzero eigenvalues of the T×T ones. Products are rounded as `centered_gram` says.
    """
    gpu = faster.on(centered.device)
    assert gpu is not None
    made_in = _rows_in(centered, facts.dtype, options) if entropy else None
    made = gpu.tokens.measure_rows(centered, facts, options.rows == "centered-unit", options.curvature_absolute, made_in)
    texts, _, width = centered.shape
    shape = centered.new_empty(1).expand(texts, width, width)  # what `space` is asked for, without its memory
    matrices = {}
    for name in tuple(made.rows):
        out = shape.new_empty(shape.shape) if space is None else space(shape)
        rows = made.rows.pop(name)
        matrices[name] = wide_product(rows, out) if rows.dtype == torch.float16 else centered_gram(rows.mT, facts.dtype, out)
    both = dict(zip(("keep", "drop"), made.curvature, strict=True)) if curvature else {}
    return PreparedTokens(matrices, both, made.flat if curvature else torch.zeros_like(made.flat))


def wide_product(rows: Tensor, out: Tensor) -> Tensor:
    """XᵀX of float16 rows (B, T, D), summed and kept in float32; on CUDA, since torch 2.8."""
    with half_products():
        return torch.bmm(rows.mT, rows, out_dtype=torch.float32, out=out)


def _rows_in(centered: Tensor, dtype: torch.dtype, options: Options) -> torch.dtype:
    """What rows are multiplied in. float16 has as many digits as TF32 and is twice as fast; rows of length 1 fit its range."""
    if dtype not in (torch.bfloat16, torch.float16) or options.rows != "centered-unit" or not centered.is_cuda:
        return torch.float32
    return torch.float16 if wide_products(centered.device.index or 0) else torch.float32


@cache
def wide_products(index: int) -> bool:
    """Whether `wide_product` works on a device, tried once on numbers whose products float16 cannot hold."""
    try:
        rows = (1 + torch.arange(48, device=torch.device("cuda", index)).view(1, 6, 8) / 1024).half()
        want = (rows.double().unsqueeze(-1) * rows.double().unsqueeze(-2)).sum(1).float()
        return torch.equal(wide_product(rows, torch.empty_like(want)), want)
    except (RuntimeError, TypeError):  # not in this torch, or not on this device
        return False
