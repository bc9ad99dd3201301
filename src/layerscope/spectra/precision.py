"""How float32 matrix products are rounded on a GPU: in full, whatever the user has set for the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision(full: bool = True) -> Iterator[None]:
    """Products of float32 matrices with all their digits (or, with `full=False`, through TF32) inside this block."""
    if not torch.cuda.is_available():
        yield
        return
    switch: Any = torch.backends.cuda.matmul
    name, wanted = "allow_tf32", not full
    try:
        before = switch.allow_tf32
    except RuntimeError:  # torch has two ways to say it, and refuses this one where the user has used the other
        name, before = "fp32_precision", switch.fp32_precision
        wanted = "ieee" if full else "tf32"  # type: ignore[assignment]
    if before == wanted:
        yield
        return
    setattr(switch, name, wanted)
    try:
        yield
    finally:
        setattr(switch, name, before)


@contextmanager
def half_products() -> Iterator[None]:
    """Products of float16 matrices are summed in float32 to the end inside this block, whatever the user allows the model."""
    if not torch.cuda.is_available():
        yield
        return
    switch: Any = torch.backends.cuda.matmul
    names = ("allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation")
    allowed = [name for name in names if getattr(switch, name, False)]
    for name in allowed:
        setattr(switch, name, False)
    try:
        yield
    finally:
        for name in allowed:
            setattr(switch, name, True)
