"""What AIM is trained on: the pixels of the next patch, predicted by a head of its own (El-Nouby et al. 2024, section 3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerscope.models.architectures.aim_config import AimConfig


class AimPixelHead(nn.Module):
    """Predicts pixels patch by patch: residual MLP blocks of the trunk's width, a norm and a linear layer.

    The head takes over what is particular to pixels, so that the trunk need not.
    """

    def __init__(self, config: AimConfig, depth: int = 2) -> None:
        super().__init__()
        width, hidden = config.width, int(config.mlp_ratio * config.width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, config.channels * config.patch_size**2)

    def forward(self, states: Tensor) -> Tensor:
        """(B, N, D) to (B, N, pixels of a patch); row i is about patch i + 1."""
        for block in self.blocks:
            states = states + block(states)
        return self.out(self.norm(states))


def patch_targets(pixels: Tensor, patch: int, eps: float = 1e-6) -> Tensor:
    """The pixels of each patch in raster order (B, N, C · patch²), each patch with mean 0 and variance 1."""
    columns = functional.unfold(pixels, kernel_size=patch, stride=patch).transpose(1, 2)
    mean, variance = columns.mean(-1, keepdim=True), columns.var(-1, keepdim=True, unbiased=False)
    return (columns - mean) / (variance + eps).sqrt()


def pixel_loss(predicted: Tensor, targets: Tensor, prefix: Tensor | None = None) -> Tensor:
    """Mean squared error of every patch from its predecessor's state; what lies inside the prefix is not predicted.

    `prefix` (B,) counts the patches that see each other: patch i is predicted where i ≥ max(prefix, 1).
    """
    errors = (predicted[:, :-1] - targets[:, 1:]).square().mean(-1)
    if prefix is None:
        return errors.mean()
    later = torch.arange(1, targets.shape[1], device=targets.device) >= prefix.to(targets.device).reshape(-1, 1)
    return (errors * later).sum() / later.sum().clamp_min(1)
