"""AIM, the autoregressive image model (El-Nouby et al. 2024, arXiv 2401.08541), written from the paper.

A vision transformer without a class token: patches, a norm, fixed sine positions, pre-norm blocks without biases, and a norm
after the last block. It is trained to predict each patch from those before it in raster order; a random prefix of patches
sees itself both ways, so that the trained model can be read with every patch seeing every other.
Module names are those of the published safetensors, so that the weights load by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerscope.models.architectures.aim_config import AimConfig

_EPS = 1e-6


@dataclass
class AimOutput:
    """`last_hidden_state` (B, patches, D) is after the final norm; the L + 1 `hidden_states`, if asked for, are before it."""

    last_hidden_state: Tensor
    hidden_states: tuple[Tensor, ...] | None = None


def sine_positions(rows: int, columns: int, width: int) -> Tensor:
    """Fixed positions (rows · columns, width) in raster order: the first half codes the column, the second the row.

    >>> sine_positions(2, 3, 8).shape
    torch.Size([6, 8])
    """
    quarter = width // 4
    rates = 10000.0 ** -(torch.arange(quarter, dtype=torch.float32) / quarter)

    def code(place: Tensor) -> Tensor:
        angles = place.unsqueeze(-1) * rates
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    down = torch.arange(rows, dtype=torch.float32).repeat_interleave(columns)
    across = torch.arange(columns, dtype=torch.float32).repeat(rows)
    return torch.cat([code(across), code(down)], dim=-1)


def attention_mask(patches: int, prefix: Tensor | int | None, device: torch.device) -> Tensor:
    """Which patch (row) sees which (column): its predecessors and itself, and everyone the prefix. (B or 1, 1, N, N) bool."""
    causal = torch.ones(patches, patches, dtype=torch.bool, device=device).tril()
    if prefix is None:
        return causal[None, None]
    counts = torch.as_tensor(prefix, device=device).reshape(-1, 1)
    inside = torch.arange(patches, device=device) < counts  # (B, N)
    return (causal[None] | inside[:, None, :]).unsqueeze(1)


class Patches(nn.Module):
    """Cuts an image into patches and projects each."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        size = config.patch_size
        self.proj = nn.Conv2d(config.channels, config.width, kernel_size=size, stride=size)
        self.norm = nn.LayerNorm(config.width, eps=_EPS)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) to (B, rows, columns, D)."""
        return self.norm(self.proj(pixels).permute(0, 2, 3, 1))


class Preprocessor(nn.Module):
    """Patches with their positions, in raster order."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.patchifier = Patches(config)

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) to (B, N, D)."""
        grid = self.patchifier(pixels)
        _, rows, columns, width = grid.shape
        return grid.flatten(1, 2) + sine_positions(rows, columns, width).to(grid)


class Attention(nn.Module):
    """Self-attention without biases."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.proj = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`mask` None: everyone sees everyone."""
        batch, count, width = x.shape
        q, k, v = self.qkv(x).view(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(mixed.transpose(1, 2).reshape(batch, count, width))


class Mlp(nn.Module):
    """Two linear layers without biases."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        hidden = int(config.mlp_ratio * config.width)
        self.fc1 = nn.Linear(config.width, hidden, bias=False)
        self.fc2 = nn.Linear(hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Token by token."""
        return self.fc2(functional.gelu(self.fc1(x)))


class Block(nn.Module):
    """One pre-norm block."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width, eps=_EPS)
        self.attn = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width, eps=_EPS)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """The state after the block."""
        x = x + self.attn(self.norm_1(x), mask)
        return x + self.mlp(self.norm_2(x))


class Trunk(nn.Module):
    """The blocks and the norm after the last."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.post_trunk_norm = nn.LayerNorm(config.width, eps=_EPS)

    def forward(self, x: Tensor, mask: Tensor | None, keep: list[Tensor] | None = None) -> Tensor:
        """The normed state after the last block; `keep` collects the state after each block."""
        for block in self.blocks:
            x = block(x, mask)
            if keep is not None:
                keep.append(x)
        return self.post_trunk_norm(x)


class AimModel(nn.Module):
    """The image model without its head.

    >>> model = AimModel(AimConfig(image_size=28, patch_size=7, width=32, blocks=2, heads=4))
    >>> model(torch.zeros(1, 3, 28, 28)).last_hidden_state.shape
    torch.Size([1, 16, 32])
    """

    main_input_name = "pixel_values"

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.config = config
        self.preprocessor = Preprocessor(config)
        self.trunk = Trunk(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random weights: Xavier for every matrix, the patch projection taken as a matrix too."""
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(part.weight.view(part.weight.shape[0], -1))
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def mask(self, patches: int, prefix: Tensor | int | None, device: torch.device) -> Tensor | None:
        """Who sees whom, as the configuration says; `prefix` overrides the configuration's, one for all or one per image."""
        if self.config.attention == "bidirectional":
            return None
        if self.config.attention == "causal":
            return attention_mask(patches, None, device)
        return attention_mask(patches, self.config.prefix if prefix is None else prefix, device)

    def forward(self, pixel_values: Tensor, prefix: Tensor | int | None = None, output_hidden_states: bool = False) -> AimOutput:
        """States of the patches of some images (B, C, H, W)."""
        x = self.preprocessor(pixel_values)
        states = [x] if output_hidden_states else None
        last = self.trunk(x, self.mask(x.shape[1], prefix, x.device), states)
        return AimOutput(last, tuple(states) if states is not None else None)
