"""TinyViT (Wu et al. 2022, arXiv 2207.10666), a transformer in stages, up to the end of its third.

Convolutions make a map a quarter of the image size, a first stage works on it by convolutions, a
second and a third by attention inside windows; between stages the map is halved and widened. Only
inside a stage do states keep their width: what is read layer by layer here is the third, the
deepest, stage. Module names are those of the published weights (MobileSAM), from which the model is
taken.
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
    """The sizes of a TinyViT with five million parameters, and the image size it is read at."""

    model_type = "tiny_vit_stage"
    patch_size = 16  # pixels, along one side, that a token stands for

    def __init__(self, **given: Any) -> None:
        for name, usual in _SIZES.items():
            setattr(self, name, given.pop(name, usual))
        super().__init__(**given)

    # of the third stage, under the names of transformers' models
    hidden_size = property(lambda self: self.widths[2])
    num_hidden_layers = property(lambda self: self.depths[2])

    def to_dict(self) -> dict[str, Any]:
        """The sizes alone."""
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
    """Point by point, by neighborhood, point by point: a branch of the first stage; between stages,
    what halves a map."""

    def __init__(self, inside: int, inner: int, outside: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = ConvNorm(inside, inner)
        self.conv2 = ConvNorm(inner, inner, 3, stride, groups=inner)
        self.conv3 = ConvNorm(inner, outside)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H / stride, W / stride)."""
        return self.conv3(functional.gelu(self.conv2(functional.gelu(self.conv1(x)))))


class WindowAttention(nn.Module):
    """Attention inside windows, with a learned bias for each distance along both sides."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))

    def forward(self, x: Tensor, side: tuple[int, int]) -> Tensor:
        """(B, H · W, C); the map is filled up with zeros to whole windows."""
        batch, _, width = x.shape
        height, across = side
        size = self.window
        down, right = -height % size, -across % size
        grid = functional.pad(x.view(batch, height, across, width), (0, 0, 0, right, 0, down))
        rows, columns = (height + down) // size, (across + right) // size
        cut = (
            grid.view(batch, rows, size, columns, size, width)
            .transpose(2, 3)
            .reshape(-1, size * size, width)
        )
        mixed = self._attend(cut).view(batch, rows, columns, size, size, width).transpose(2, 3)
        whole = mixed.reshape(batch, height + down, across + right, width)
        return whole[:, :height, :across].reshape(batch, height * across, width)

    def _attend(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        # each head's query, key and value lie side by side
        q, k, v = (
            self.qkv(self.norm(x)).view(count, tokens, self.heads, 3, -1).permute(3, 0, 2, 1, 4)
        )
        place = torch.arange(tokens, device=x.device)
        down, across = place // self.window, place % self.window
        apart = (down[:, None] - down[None]).abs() * self.window + (
            across[:, None] - across[None]
        ).abs()
        bias = self.attention_biases[:, apart]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))


class AttentionBlock(nn.Module):
    """Attention, a convolution over neighbors that takes the place of the state, an MLP."""

    def __init__(self, width: int, heads: int, window: int, ratio: int) -> None:
        super().__init__()
        self.attn = WindowAttention(width, heads, window)
        self.local_conv = ConvNorm(width, width, 3, groups=width)
        fc1, fc2 = nn.Linear(width, ratio * width), nn.Linear(ratio * width, width)
        self.mlp = nn.Sequential(
            OrderedDict(norm=nn.LayerNorm(width), fc1=fc1, act=nn.GELU(), fc2=fc2)
        )

    def forward(self, x: Tensor, side: tuple[int, int]) -> Tensor:
        """(B, H · W, C)."""
        x = x + self.attn(x, side)
        grid = x.transpose(1, 2).unflatten(-1, side)
        x = self.local_conv(grid).flatten(2).transpose(1, 2)
        return x + self.mlp(x)


class TinyVitModel(PreTrainedModel):
    """Pixels to the states of the third stage, in raster order."""

    config_class = TinyVitConfig
    main_input_name = "pixel_values"
    _supports_sdpa = True

    def __init__(self, config: TinyVitConfig) -> None:
        super().__init__(config)
        widths, ratio = config.widths, config.mlp_ratio

        def attention(stage: int) -> nn.ModuleList:
            width, heads, window = widths[stage], config.heads[stage], config.windows[stage]
            return nn.ModuleList(
                AttentionBlock(width, heads, window, ratio) for _ in range(config.depths[stage])
            )

        half = widths[0] // 2
        stem = nn.Sequential(
            ConvNorm(config.num_channels, half, 3, 2), nn.GELU(), ConvNorm(half, widths[0], 3, 2)
        )
        self.patch_embed = nn.ModuleDict({"seq": stem})
        first = nn.ModuleList(
            Convolutions(widths[0], widths[0] * ratio, widths[0]) for _ in range(config.depths[0])
        )
        self.layers = nn.ModuleList(
            [
                nn.ModuleDict(
                    {
                        "blocks": first,
                        "downsample": Convolutions(widths[0], widths[1], widths[1], 2),
                    }
                ),
                nn.ModuleDict(
                    {
                        "blocks": attention(1),
                        "downsample": Convolutions(widths[1], widths[2], widths[2], 2),
                    }
                ),
                nn.ModuleDict({"blocks": attention(2)}),
            ]
        )
        self.post_init()

    def forward(self, pixel_values: Tensor, output_hidden_states: bool = False) -> BaseModelOutput:
        """States of the third stage of some images (B, C, H, W); sides must be multiples of 16."""
        stages: Any = self.layers
        first, second, third = stages
        x = self.patch_embed["seq"](pixel_values)
        for block in first["blocks"]:
            x = functional.gelu(x + block(x))
        x, side = _tokens(first["downsample"](x))
        for block in second["blocks"]:
            x = block(x, side)
        x, side = _tokens(second["downsample"](x.transpose(1, 2).unflatten(-1, side)))
        states = [x]
        for block in third["blocks"]:
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
    model.load_state_dict(
        {
            key: weights[f"{_PREFIX}{key}"]
            for key in model.state_dict()
            if f"{_PREFIX}{key}" in weights
        }
    )
    with quiet(bars=True):
        model.save_pretrained(into)
    side = model.config.image_size
    PixelPreparation(
        (side, side), 3, IMAGENET_MEAN, IMAGENET_STD, resample="bilinear"
    ).save_pretrained(into)
