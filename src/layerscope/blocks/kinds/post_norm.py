"""Blocks that end with a norm of the sum: BERT, MPNet, RoBERTa, XLM-R, ELECTRA, DistilBERT."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from layerscope.blocks.kinds.base import BlockKind, Problem


class PostNorm(BlockKind):
    """The block's output is `LayerNorm(x + W g + b)`.

    The fit is made before the norm, where the state of the whole model is known without the norm's
    gain: dividing by a tiny gain would ruin it.
    """

    name = "post-norm"

    def sum_module(self, block: nn.Module) -> tuple[nn.Module, bool] | None:
        """The last norm's input."""
        norm = _last_norm(block)
        return None if norm is None or not _is_last(block, norm) else (norm, True)

    def problem(self, current: Tensor, target: Tensor) -> Problem:
        """(ΔW g + Δb)/σ ≈ z* + (μ − u)/σ, with z* the target's sum, standardized."""
        mean, deviation = _moments(current)
        target_mean, target_deviation = _moments(target)
        goal = (target - target_mean) / target_deviation
        return Problem(1 / deviation[:, 0], goal - (current - mean) / deviation)

    def finish(self, block: nn.Module, last: nn.Module) -> None:
        """Take over the norm's gain and bias."""
        own, other = _last_norm(block), _last_norm(last)
        assert own is not None
        assert other is not None
        with torch.no_grad():
            own.weight, own.bias = other.weight, other.bias


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    deviation, mean = torch.std_mean(rows, dim=-1, correction=0, keepdim=True)
    return mean, deviation.clamp_min(1e-12)


def _last_norm(block: nn.Module) -> nn.LayerNorm | None:
    norms = [part for part in block.modules() if isinstance(part, nn.LayerNorm)]
    return norms[-1] if norms else None


def _is_last(block: nn.Module, norm: nn.LayerNorm) -> bool:
    """Whether nothing with weights follows the norm in the block."""
    parts = [part for part in block.modules() if any(True for _ in part.parameters(recurse=False))]
    return bool(parts) and parts[-1] is norm


POST_NORM = PostNorm()
