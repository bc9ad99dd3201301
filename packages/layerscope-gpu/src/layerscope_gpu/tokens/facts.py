"""Facts about prompts that the kernels need beside their rows, and rows with a known answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

HALF_CODES = {torch.float16: 1, torch.bfloat16: 2}
"""Types of half precision, as the kernels know them; others are 0."""


class TokenFacts(NamedTuple):
    """Facts about the tokens of some prompts, whose rows are centered.

    `norms` of their states (B, T), float64; `mask`: which tokens are real (B, T), None where all
    are; `sink`: each prompt's largest token (B,); `dtype`: what the states were stored as.
    """

    norms: Tensor
    mask: Tensor | None
    sink: Tensor
    dtype: torch.dtype


def far_token(device: torch.device) -> tuple[Tensor, TokenFacts]:
    """Return rows with a known answer: a square's corners, then a token far away.

    With it and without it they turn by right angles.
    """
    rows = torch.tensor(
        [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 50.0]], device=device
    )
    rows = rows - rows[:4].mean(0)
    norms = torch.linalg.vector_norm(rows, dim=-1).double().unsqueeze(0)
    return rows, TokenFacts(norms, None, torch.tensor([4], device=device), torch.float32)
