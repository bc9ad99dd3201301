"""Facts about prompts that the kernels need besides their rows, and rows with a known answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HALF_CODES = {torch.float16: 1, torch.bfloat16: 2}
"""Codes of half-precision types in the kernels; other types have 0."""


class TokenFacts(NamedTuple):
    """Facts about the tokens of some prompts.

    `norms` are those of the states (B, T), float64. `mask` is True for real tokens (B, T), or None
    if all are. `sink` is each prompt's largest token (B,), and `dtype` the type of the states.
    """

    norms: Tensor
    mask: Tensor | None
    sink: Tensor
    dtype: torch.dtype


def far_token(device: torch.device) -> tuple[Tensor, TokenFacts]:
    """Return rows with a known answer: a square's corners, then a token far away.

    With and without the far token, the differences have right angles.
    """
    rows = torch.tensor(
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 50.0]], device=device
    )
    rows = rows - rows[:4].mean(0)
    norms = torch.linalg.vector_norm(rows, dim=-1).double().unsqueeze(0)
    return rows, TokenFacts(norms, None, torch.tensor([4], device=device), torch.float32)
