"""AIM, the autoregressive image model (El-Nouby et al. 2024, arXiv 2401.08541), written from the paper.

A vision transformer without a class token: patches, a norm, fixed sine positions, pre-norm blocks without biases, and a norm
after the last block. It is trained to predict each patch from those before it in raster order; a random prefix of patches
sees itself both ways, so that the trained model can be read with every patch seeing every other.
Module names are those of the published safetensors, so that the weights load by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerscope.errors import ModelError, UnknownNameError
from layerscope.models.architectures.files import StatesOutput

AttentionMode = Literal["bidirectional", "prefix", "causal"]
ATTENTIONS: tuple[AttentionMode, ...] = get_args(AttentionMode)

MODEL_TYPE = "aim"

# Our name, and the names that published configurations use for it.
_PUBLISHED = {
    "image_size": ("img_size", "image_size"),
    "patch_size": ("patch_size",),
    "width": ("embed_dim",),
    "blocks": ("num_blocks",),
    "heads": ("num_heads",),
    "channels": ("num_channels",),
    "mlp_ratio": ("mlp_ratio",),
}
_NEEDED = ("embed_dim", "num_blocks", "num_heads", "patch_size")


@dataclass
class AimConfig:
    """The sizes of an AIM and which patches see which.

    `attention`: `bidirectional`, every patch sees every patch, which is how the published models are read downstream (the
    whole image is the prefix); `causal`, a patch sees itself and those before it in raster order; `prefix`, the first `prefix`
    patches see each other and the rest is causal, as in pretraining.

    >>> AimConfig(image_size=28, patch_size=7, width=32, blocks=2, heads=4).patches
    16
    """

    image_size: int = 224
    patch_size: int = 14
    width: int = 1536
    blocks: int = 24
    heads: int = 12
    channels: int = 3
    mlp_ratio: float = 4.0
    attention: AttentionMode = "bidirectional"
    prefix: int | None = None

    def __post_init__(self) -> None:
        if self.attention not in ATTENTIONS:
            raise UnknownNameError("attention", str(self.attention), ATTENTIONS)
        if self.image_size % self.patch_size:
            raise ModelError(f"an image of {self.image_size} pixels cannot be cut into patches of {self.patch_size}.")
        if self.width % self.heads or self.width % 4:
            raise ModelError(f"the width {self.width} must be divisible by 4 and by the number of heads, {self.heads}.")
        if self.prefix is not None and not 0 <= self.prefix <= self.patches:
            raise ModelError(f"a prefix of {self.prefix} patches does not fit into an image of {self.patches}.")

    @property
    def patches(self) -> int:
        """Patches of an image of the size the model was trained on."""
        return (self.image_size // self.patch_size) ** 2

    # The names under which the rest of the package, and transformers' models, keep these.
    model_type: ClassVar[str] = MODEL_TYPE
    hidden_size = property(lambda self: self.width)
    num_hidden_layers = property(lambda self: self.blocks)
    num_channels = property(lambda self: self.channels)

    def to_dict(self) -> dict[str, Any]:
        """As published: the keys of Apple's config.json, and beside them what ours adds."""
        facts: dict[str, Any] = {names[0]: getattr(self, name) for name, names in _PUBLISHED.items()}
        return {**facts, "model_type": MODEL_TYPE, "attention": self.attention, "prefix": self.prefix}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], attention: AttentionMode | None = None, prefix: int | None = None) -> AimConfig:
        """From a published config.json; a model that does not say is bidirectional."""
        inner = facts["config"] if isinstance(facts.get("config"), Mapping) else facts
        given: dict[str, Any] = {}
        for name, keys in _PUBLISHED.items():
            value = next((inner[key] for key in keys if key in inner), None)
            if value is not None:
                given[name] = value[0] if isinstance(value, list) else value
        given["attention"] = attention or inner.get("attention", "bidirectional")
        given["prefix"] = prefix if prefix is not None else inner.get("prefix")
        return cls(**given)


def is_aim(facts: Mapping[str, Any]) -> bool:
    """Whether a config.json describes an AIM: ours says so, Apple's has no model type and is told by its keys."""
    inner = facts["config"] if isinstance(facts.get("config"), Mapping) else facts
    if inner.get("model_type") is not None:
        return inner["model_type"] == MODEL_TYPE
    return all(key in inner for key in _NEEDED)


_EPS = 1e-6


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
        return self.fc2(functional.gelu(self.fc1(x)))


class AimBlock(nn.Module):
    """One pre-norm block."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.width, eps=_EPS)
        self.attn = Attention(config)
        self.norm_2 = nn.LayerNorm(config.width, eps=_EPS)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.norm_1(x), mask)
        return x + self.mlp(self.norm_2(x))


class Trunk(nn.Module):
    """The blocks and the norm after the last."""

    def __init__(self, config: AimConfig) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(AimBlock(config) for _ in range(config.blocks))
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

    def forward(
        self, pixel_values: Tensor, prefix: Tensor | int | None = None, output_hidden_states: bool = False
    ) -> StatesOutput:
        """States of the patches of some images (B, C, H, W)."""
        x = self.preprocessor(pixel_values)
        states = [x] if output_hidden_states else None
        last = self.trunk(x, self.mask(x.shape[1], prefix, x.device), states)
        return StatesOutput(last, tuple(states) if states is not None else None)


_HEADS = ("head.",)  # the published classifier, which pools the average of six layers: not part of the trunk


def read_aim(
    folder: Path,
    weights: Sequence[Path] | None = None,
    *,
    dtype: torch.dtype | None = None,
    attention: AttentionMode | None = None,
    prefix: int | None = None,
) -> AimModel:
    """The model in a folder with config.json and safetensors, as published or as `write_model` leaves it.

    `dtype` None keeps that of the files. Every weight of the trunk must be there; a classifier's are left out.
    """
    from safetensors.torch import load_file

    facts = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = AimConfig.from_dict(facts, attention, prefix)
    files = sorted(folder.glob("*.safetensors")) if weights is None else list(weights)
    state = {key: value for file in files for key, value in load_file(file).items() if not key.startswith(_HEADS)}
    with torch.device("meta"):
        model = AimModel(config)
    wanted = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    shapes = {key: tuple(value.shape) for key, value in state.items()}
    if wanted != shapes:
        raise ModelError(f"{folder} does not hold the AIM that its config.json describes: {_difference(wanted, shapes)}.")
    if dtype is not None:
        state = {key: value.to(dtype) for key, value in state.items()}
    model.load_state_dict(state, assign=True)
    return model


def _difference(wanted: dict[str, tuple[int, ...]], given: dict[str, tuple[int, ...]]) -> str:
    missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    if missing:
        return f"{len(missing)} weights are missing, such as {missing[0]}"
    if extra:
        return f"{len(extra)} weights have no place in it, such as {extra[0]}"
    key = next(key for key in sorted(wanted) if wanted[key] != given[key])
    return f"{key} is {given[key]}, not {wanted[key]}"
