"""Products of float16 matrices with sums in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from layerscope_gpu.cuda import tried_once


@contextmanager
def half_products() -> Iterator[None]:
    """Sum products of float16 matrices in float32 inside a block, whatever torch's settings are."""
    switch: Any = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
    before = {name: getattr(switch, name, False) for name in names}
    changed = {name: value for name, value in before.items() if value}
    for name in changed:
        setattr(switch, name, False)
    try:
        yield
    finally:
        for name, value in changed.items():
            setattr(switch, name, value)


def wide_product(rows: Tensor, out: Tensor) -> Tensor:
    """Return XᵀX of float16 rows (B, T, D) in float32. It needs CUDA and torch 2.8 or later."""
    with half_products():
        return torch.bmm(rows.mT, rows, out_dtype=torch.float32, out=out)


@tried_once
def wide_products(index: int) -> bool:
    """Return True if `wide_product` is right for products that float16 cannot represent."""
    rows = 1 + torch.arange(48, device=torch.device("cuda", index)).view(1, 6, 8) / 1024
    rows = rows.half()
    expected = (rows.double().unsqueeze(-1) * rows.double().unsqueeze(-2)).sum(1).float()
    return torch.equal(wide_product(rows, torch.empty_like(expected)), expected)
