"""Blocks that add to the residual stream: Llama, Qwen2, GPT-NeoX, GPT-2, ModernBERT."""

from __future__ import annotations

from torch import Tensor, nn

from layerscope.blocks.kinds.base import BlockKind, Problem


class PreNorm(BlockKind):
    """The block's output is `x + W g`, with or without a bias.

    Tokens count by one over the length of their state. The first is left out: in language models it
    is the sink, whose state is hundreds of times as long.
    """

    name = "pre-norm"
    skips_first_token = True

    def sum_module(self, block: nn.Module) -> tuple[nn.Module, bool] | None:
        """The block's output."""
        return block, False

    def problem(self, current: Tensor, target: Tensor) -> Problem:
        """(ΔW g + Δb)/|y*| ≈ (y* − y)/|y*|, with y* the target's state."""
        scale = 1 / target.norm(dim=-1).clamp_min(1e-12)
        return Problem(scale, (target - current) * scale[:, None])

    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Nothing else of a state belongs to a block."""


PRE_NORM = PreNorm()
