"""Products of float16 matrices that lose no digits of their sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor


@contextmanager
def half_products() -> Iterator[None]:
    """Products of float16 matrices are summed in float32 to the end inside a block, whatever the
    user allows the model."""
    switch: Any = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
    before = {
        name: allowed
        for name in names
        if torch.cuda.is_available() and (allowed := getattr(switch, name, False))
    }
    for name in before:
        setattr(switch, name, False)
    try:
        yield
    finally:
        for name, allowed in before.items():
            setattr(switch, name, allowed)


def wide_product(rows: Tensor, out: Tensor) -> Tensor:
    """XᵀX of float16 rows (B, T, D), summed and kept in float32; on CUDA, since torch 2.8."""
    with half_products():
        return torch.bmm(rows.mT, rows, out_dtype=torch.float32, out=out)


@cache
def wide_products(index: int) -> bool:
    """Whether `wide_product` works on a device, tried once on numbers whose products float16 cannot
    hold."""
    try:
        rows = (
            1 + torch.arange(48, device=torch.device("cuda", index)).view(1, 6, 8) / 1024
        ).half()
        want = (rows.double().unsqueeze(-1) * rows.double().unsqueeze(-2)).sum(1).float()
        return torch.equal(wide_product(rows, torch.empty_like(want)), want)
    except (RuntimeError, TypeError):  # not in this torch, or not on this device
        return False
