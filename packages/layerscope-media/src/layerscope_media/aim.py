"""AIM, the autoregressive image model (El-Nouby et al. 2024, arXiv 2401.08541), implemented from
the paper.

It is a vision transformer without a class token: patches, a norm, fixed sine positions, pre-norm
blocks without biases, and a norm after the last block. It is trained to predict each patch from
those before it in raster order. In training the attention within a random prefix of patches is
bidirectional, so that the trained model can be read with bidirectional attention. Module names are
those of the published safetensors, so that the weights load by name.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from layerscope.errors import ModelError, UnknownNameError
from layerscope_media.families import ATTENTIONS

_SIZES = {
    "img_size": 224,
    "patch_size": 14,
    "embed_dim": 1536,
    "num_blocks": 24,
    "num_heads": 12,
    "num_channels": 3,
    "mlp_ratio": 4.0,
}


class AimConfig(PretrainedConfig):
    """The sizes of an AIM, under the names of the published configurations, and its attention.

    `attention` is one of three. With `bidirectional` every patch attends to every patch, as in
    applications of the published models. With `causal` a patch attends to itself and those before
    it in raster order. With `prefix` the first `prefix` patches attend to each other and the others
    are causal, as in pretraining.

    >>> AimConfig(img_size=28, patch_size=7, embed_dim=32, num_blocks=2, num_heads=4).patches
    16
    """

    model_type = "aim"
    attribute_map: ClassVar[dict[str, str]] = {
        "image_size": "img_size",
        "hidden_size": "embed_dim",
        "num_hidden_layers": "num_blocks",
    }

    def __init__(
        self, attention: str = "bidirectional", prefix: int | None = None, **settings: Any
    ) -> None:
        if isinstance(settings.get("img_size"), list):
            settings["img_size"] = settings["img_size"][0]
        for name, default in _SIZES.items():
            setattr(self, name, settings.pop(name, default))
        if self.img_size % self.patch_size:
            raise ModelError(
                f"img_size {self.img_size} must be a multiple of patch_size {self.patch_size}."
            )
        if self.embed_dim % self.num_heads or self.embed_dim % 4:
            raise ModelError(
                f"embed_dim is {self.embed_dim}; it must be divisible by 4 and by num_heads "
                f"{self.num_heads}."
            )
        self.set_attention(attention, prefix)
        super().__init__(**settings)

    def set_attention(self, attention: str, prefix: int | None = None) -> None:
        """Set the attention pattern."""
        if attention not in ATTENTIONS:
            raise UnknownNameError("attention", str(attention), ATTENTIONS)
        if prefix is not None and not 0 <= prefix <= self.patches:
            raise ModelError(
                f"prefix is {prefix} patches; it must be between 0 and the image's {self.patches}."
            )
        self.attention = attention
        self.prefix = prefix

    @property
    def patches(self) -> int:
        """Return the number of patches of an image of the size the model was trained on."""
        return (self.img_size // self.patch_size) ** 2

    def to_dict(self) -> dict[str, Any]:
        """Return the published settings and the attention, without transformers' other ones."""
        facts = {name: getattr(self, name) for name in _SIZES}
        return {
            **facts,
            "model_type": self.model_type,
            "attention": self.attention,
            "prefix": self.prefix,
        }

    to_diff_dict = to_dict

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **options: Any) -> Any:
        """Make a configuration from a config.json; some have the sizes one level deeper."""
        inner = config_dict.get("config")
        return super().from_dict(dict(inner) if isinstance(inner, dict) else config_dict, **options)


_EPS = 1e-6


def sine_positions(rows: int, columns: int, width: int) -> Tensor:
    """Return fixed positions (rows · columns, width) in raster order: the first half encodes the
    column, the second the row.

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
    """Return booleans (B or 1, 1, N, N), True where a patch (row) attends to another (column): to
    itself, its predecessors and the prefix."""
    causal = torch.ones(patches, patches, dtype=torch.bool, device=device).tril()
    if prefix is None:
        return causal[None, None]
    counts = torch.as_tensor(prefix, device=device).reshape(-1, 1)
    inside = torch.arange(patches, device=device) < counts  # (B, N)
    return (causal[None] | inside[:, None, :]).unsqueeze(1)


class Attention(nn.Module):
    """Self-attention without biases."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.qkv = nn.Linear(config.embed_dim, 3 * config.embed_dim, bias=False)
        self.proj = nn.Linear(config.embed_dim, config.embed_dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mix patches by attention; without a mask it is bidirectional."""
        batch, count, width = x.shape
        q, k, v = (
            self.qkv(x)
            .view(batch, count, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.proj(mixed.transpose(1, 2).reshape(batch, count, width))


class AimBlock(nn.Module):
    """One pre-norm block."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.embed_dim, eps=_EPS)
        self.attn = Attention(config)
        self.norm_2 = nn.LayerNorm(config.embed_dim, eps=_EPS)
        hidden = int(config.mlp_ratio * config.embed_dim)
        fc1 = nn.Linear(config.embed_dim, hidden, bias=False)
        fc2 = nn.Linear(hidden, config.embed_dim, bias=False)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, act=nn.GELU(), fc2=fc2))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.norm_1(x), mask)
        return x + self.mlp(self.norm_2(x))


class AimModel(PreTrainedModel):
    """The image model without its head.

    >>> model = AimModel(AimConfig(img_size=28, patch_size=7, embed_dim=32, num_blocks=2,
    num_heads=4))
    >>> model(torch.zeros(1, 3, 28, 28)).last_hidden_state.shape
    torch.Size([1, 16, 32])
    """

    config_class = AimConfig
    main_input_name = "pixel_values"
    _supports_sdpa = True
    # the published classifier, which pools the average of six layers
    _keys_to_ignore_on_load_unexpected = (r"^head\.",)

    def __init__(self, config: AimConfig) -> None:
        super().__init__(config)
        width = config.embed_dim
        size = config.patch_size
        proj = nn.Conv2d(config.num_channels, width, kernel_size=size, stride=size)
        self.preprocessor = nn.ModuleDict(
            {"patchifier": nn.ModuleDict({"proj": proj, "norm": nn.LayerNorm(width, eps=_EPS)})}
        )
        blocks = nn.ModuleList(AimBlock(config) for _ in range(config.num_blocks))
        self.trunk = nn.ModuleDict(
            {"blocks": blocks, "post_trunk_norm": nn.LayerNorm(width, eps=_EPS)}
        )
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Set random weights, by Xavier's method for matrices and the patch projection."""
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight.view(module.weight.shape[0], -1))
            if module.bias is not None:
                nn.init.zeros_(module.bias)

    def mask(
        self, patches: int, prefix: Tensor | int | None, device: torch.device
    ) -> Tensor | None:
        """Return the mask of the configured attention; `prefix` overrides the configuration's, one
        for all images or one for each."""
        if self.config.attention == "bidirectional":
            return None
        if self.config.attention == "causal":
            return attention_mask(patches, None, device)
        return attention_mask(patches, self.config.prefix if prefix is None else prefix, device)

    def forward(
        self,
        pixel_values: Tensor,
        prefix: Tensor | int | None = None,
        output_hidden_states: bool = False,
    ) -> BaseModelOutput:
        """Return the states of the patches of images (B, C, H, W); `hidden_states` are those before
        the final norm."""
        patchifier: Any = self.preprocessor["patchifier"]
        grid = patchifier["norm"](patchifier["proj"](pixel_values).permute(0, 2, 3, 1))
        _, rows, columns, width = grid.shape
        x = grid.flatten(1, 2) + sine_positions(rows, columns, width).to(grid)
        mask = self.mask(x.shape[1], prefix, x.device)
        states = [x]
        trunk: Any = self.trunk
        for block in trunk["blocks"]:
            x = block(x, mask)
            states.append(x)
        last = trunk["post_trunk_norm"](x)
        return BaseModelOutput(
            last_hidden_state=last, hidden_states=tuple(states) if output_hidden_states else None
        )
