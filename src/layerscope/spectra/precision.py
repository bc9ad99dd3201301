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
