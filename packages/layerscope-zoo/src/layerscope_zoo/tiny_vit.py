"""TinyViT (Wu et al. 2022, arXiv 2207.10666), a transformer in stages, up to the end of its third.

Convolutions make a map of a quarter of the image size. The first stage consists of convolutions,
the second and third of attention inside windows. Between stages the map is halved and its width
grows. States have the same width only inside a stage, so only the third stage, the deepest, is read
layer by layer. Module names are those of the published weights (MobileSAM).
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from layerscope.models import quiet
from layerscope_media.pixels import IMAGENET_MEAN, IMAGENET_STD, PixelPreparation

_SIZES: dict[str, Any] = {
    "image_size": 224,
    "num_channels": 3,
    "widths": (64, 128, 160),
    "depths": (2, 2, 6),
    "heads": (2, 4, 5),  # the first stage has no attention
    "windows": (7, 7, 14),
    "mlp_ratio": 4,
}


class TinyVitConfig(PretrainedConfig):
    """The sizes of a TinyViT with five million parameters, and its image size."""

    model_type = "tiny_vit_stage"
    patch_size = 16  # pixels of a token, along one side

    def __init__(self, **settings: Any) -> None:
        for name, default in _SIZES.items():
            setattr(self, name, settings.pop(name, default))
        super().__init__(**settings)

    # of the third stage, under the names of transformers' models
    hidden_size = property(lambda self: self.widths[2])
    num_hidden_layers = property(lambda self: self.depths[2])

    def to_dict(self) -> dict[str, Any]:
        """Return the sizes, without transformers' other settings."""
        return {"model_type": self.model_type, **{name: getattr(self, name) for name in _SIZES}}

    to_diff_dict = to_dict


class ConvNorm(nn.Sequential):
    """A convolution without bias and a batch norm."""

    def __init__(
        self, inside: int, outside: int, size: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.add_module(
            "c", nn.Conv2d(inside, outside, size, stride, size // 2, groups=groups, bias=False)
        )
        self.add_module("bn", nn.BatchNorm2d(outside))


class Convolutions(nn.Module):
    """Three convolutions, of which the second covers neighbors: a branch of the first stage, or a
    step between stages, which halves a map."""

    def __init__(self, inside: int, inner: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = ConvNorm(inside, inner)
        self.conv2 = ConvNorm(inner, inner, 3, stride, groups=inner)
        self.conv3 = ConvNorm(inner, outside)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C', H / stride, W / stride)."""
        return self.conv3(functional.gelu(self.conv2(functional.gelu(self.conv1(x)))))


class WindowAttention(nn.Module):
    """Attention inside windows, with a learned bias for each distance along both sides."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.window = window
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))

    def forward(self, x: Tensor, side: tuple[int, int]) -> Tensor:
        """Attend inside windows of a map (B, H · W, C), which is padded with zeros to whole
        windows."""
        batch, _, width = x.shape
        height, across = side
        size = self.window
        down = -height % size
        right = -across % size
        grid = functional.pad(x.view(batch, height, across, width), (0, 0, 0, right, 0, down))
        rows = (height + down) // size
        columns = (across + right) // size
        windows = (
            grid.view(batch, rows, size, columns, size, width)
            .transpose(2, 3)
            .reshape(-1, size * size, width)
        )
        mixed = self._attend(windows).view(batch, rows, columns, size, size, width).transpose(2, 3)
        whole = mixed.reshape(batch, height + down, across + right, width)
        return whole[:, :height, :across].reshape(batch, height * across, width)

    def _attend(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        # each head's query, key and value are neighbors
        q, k, v = (
            self.qkv(self.norm(x)).view(count, tokens, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        )
        place = torch.arange(tokens, device=x.device)
        down = place // self.window
        across = place % self.window
        rows = (down[:, None] - down[None]).abs()
        columns = (across[:, None] - across[None]).abs()
        bias = self.attention_biases[:, rows * self.window + columns]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))


class AttentionBlock(nn.Module):
    """Attention, a convolution over neighbors that replaces the state, and an MLP."""

    def __init__(self, width: int, heads: int, window: int, ratio: int) -> None:
        super().__init__()
        self.attn = WindowAttention(width, heads, window)
        self.local_conv = ConvNorm(width, width, 3, groups=width)
        fc1 = nn.Linear(width, ratio * width)
        fc2 = nn.Linear(ratio * width, width)
        self.mlp = nn.Sequential(
            OrderedDict(norm=nn.LayerNorm(width), fc1=fc1, act=nn.GELU(), fc2=fc2)
        )

    def forward(self, x: Tensor, side: tuple[int, int]) -> Tensor:
        """Return the states (B, H · W, C) after the block."""
        x = x + self.attn(x, side)
        grid = x.transpose(1, 2).unflatten(-1, side)
        x = self.local_conv(grid).flatten(2).transpose(1, 2)
        return x + self.mlp(x)


class TinyVitModel(PreTrainedModel):
    """Maps pixels to the states of the third stage, in raster order."""

    config_class = TinyVitConfig
    main_input_name = "pixel_values"
    _supports_sdpa = True

    def __init__(self, config: TinyVitConfig) -> None:
        super().__init__(config)
        widths = config.widths
        ratio = config.mlp_ratio

        def attention(stage: int) -> nn.ModuleList:
            width = widths[stage]
            heads = config.heads[stage]
            window = config.windows[stage]
            return nn.ModuleList(
                AttentionBlock(width, heads, window, ratio) for _ in range(config.depths[stage])
            )

        half = widths[0] // 2
        stem = nn.Sequential(
            ConvNorm(config.num_channels, half, 3, 2), nn.GELU(), ConvNorm(half, widths[0], 3, 2)
        )
        self.patch_embed = nn.ModuleDict({"seq": stem})
        convolutions = nn.ModuleList(
            Convolutions(widths[0], widths[0] * ratio, widths[0]) for _ in range(config.depths[0])
        )
        stages = [nn.ModuleDict({"blocks": x}) for x in (convolutions, attention(1), attention(2))]
        for i, stage in enumerate(stages[:2]):
            stage["downsample"] = Convolutions(widths[i], widths[i + 1], widths[i + 1], 2)
        self.layers = nn.ModuleList(stages)
        self.post_init()

    def forward(self, pixel_values: Tensor, output_hidden_states: bool = False) -> BaseModelOutput:
        """Return the states of the third stage for images (B, C, H, W), whose sides must be
        multiples of 16."""
        stages: Any = self.layers
        stage1, stage2, stage3 = stages
        x = self.patch_embed["seq"](pixel_values)
        for block in stage1["blocks"]:
            x = functional.gelu(x + block(x))
        x, side = _tokens(stage1["downsample"](x))
        for block in stage2["blocks"]:
            x = block(x, side)
        x, side = _tokens(stage2["downsample"](x.transpose(1, 2).unflatten(-1, side)))
        states = [x]
        for block in stage3["blocks"]:
            x = block(x, side)
            states.append(x)
        return BaseModelOutput(
            last_hidden_state=x, hidden_states=tuple(states) if output_hidden_states else None
        )


def _tokens(grid: Tensor) -> tuple[Tensor, tuple[int, int]]:
    return grid.flatten(2).transpose(1, 2), (grid.shape[2], grid.shape[3])


_PREFIX = "image_encoder."


def convert_mobile_sam(file: Path, into: Path) -> None:
    """Write the image encoder of MobileSAM's published weights, up to the third stage, as a
    folder."""
    weights = torch.load(file, map_location="cpu", weights_only=True)
    model = TinyVitModel(TinyVitConfig())
    names = {key: f"{_PREFIX}{key}" for key in model.state_dict()}
    model.load_state_dict({key: weights[name] for key, name in names.items() if name in weights})
    with quiet(bars=True):
        model.save_pretrained(into)
    side = model.config.image_size
    preparation = PixelPreparation((side, side), 3, IMAGENET_MEAN, IMAGENET_STD)
    preparation.save_pretrained(into)
