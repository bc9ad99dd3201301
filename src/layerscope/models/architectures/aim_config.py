"""What describes an AIM, and the `config.json` that is published with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from layerscope.errors import ModelError, UnknownNameError

Attention = Literal["bidirectional", "prefix", "causal"]
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)

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
    attention: Attention = "bidirectional"
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
    @property
    def model_type(self) -> str:
        """Which family this is."""
        return MODEL_TYPE

    @property
    def hidden_size(self) -> int:
        """Features of a patch's state."""
        return self.width

    @property
    def num_hidden_layers(self) -> int:
        """Number of blocks."""
        return self.blocks

    @property
    def num_channels(self) -> int:
        """Colours of a pixel."""
        return self.channels

    def to_dict(self) -> dict[str, Any]:
        """As published: the keys of Apple's config.json, and beside them what ours adds."""
        facts: dict[str, Any] = {names[0]: getattr(self, name) for name, names in _PUBLISHED.items()}
        return {**facts, "model_type": MODEL_TYPE, "attention": self.attention, "prefix": self.prefix}

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any], attention: Attention | None = None, prefix: int | None = None) -> AimConfig:
        """From a published config.json; a model that does not say is bidirectional."""
        inner = facts["config"] if isinstance(facts.get("config"), Mapping) else facts
        given: dict[str, Any] = {}
        for name, keys in _PUBLISHED.items():
            found = next((inner[key] for key in keys if key in inner), None)
            if found is not None:
                given[name] = found[0] if isinstance(found, list) else found
        given["attention"] = attention or inner.get("attention", "bidirectional")
        given["prefix"] = prefix if prefix is not None else inner.get("prefix")
        return cls(**given)


def is_aim(facts: Mapping[str, Any]) -> bool:
    """Whether a config.json describes an AIM: ours says so, Apple's has no model type and is told by its keys."""
    inner = facts["config"] if isinstance(facts.get("config"), Mapping) else facts
    if inner.get("model_type") is not None:
        return inner["model_type"] == MODEL_TYPE
    return all(key in inner for key in _NEEDED)
