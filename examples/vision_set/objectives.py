"""Three ways to train the same trunk: from labels, by filling in masked patches, by predicting the
next patch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerscope_media.aim import AimConfig, AimModel, sine_positions


@dataclass(frozen=True)
class Size:
    """The trunk that all three share."""

    image: int
    patch: int
    classes: int
    width: int = 64
    blocks: int = 12
    heads: int = 4
    head_blocks: int = 2  # of what is thrown away after training: MAE's decoder, the pixel head

    def vit(self) -> dict[str, Any]:
        """In transformers' words."""
        return {
            "hidden_size": self.width,
            "num_hidden_layers": self.blocks,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
            "image_size": self.image,
            "patch_size": self.patch,
            "num_channels": 1,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        }


class Objective(nn.Module):
    """A trunk, what is trained with it, and the loss on a batch."""

    trunk: nn.Module

    def loss(self, pixels: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """The loss on prepared pixels (B, 1, H, W)."""
        raise NotImplementedError

    def start(self) -> None:
        """The same start for all three: Xavier for every matrix, biases at zero, sine positions,
        small random tokens.

        transformers leaves the positions of a ViT-MAE made from a config at zero, untrained:
        without them it cannot learn.
        """
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(part.weight.view(part.weight.shape[0], -1))
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        for name, parameter in self.named_parameters():
            if name.endswith(("position_embeddings", "decoder_pos_embed")):
                side = int((parameter.shape[1] - 1) ** 0.5)
                parameter.data.zero_()  # of the class token
                parameter.data[0, 1:] = sine_positions(side, side, parameter.shape[2])
            elif name.endswith(("cls_token", "mask_token")):
                nn.init.normal_(parameter, std=0.02)

    def save(self, folder: Path) -> None:
        """The trunk alone, in half precision, as layerscope.load reads it."""
        self.trunk.half().save_pretrained(folder)  # type: ignore[operator]


class Supervised(Objective):
    """A ViT whose class token is classified."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        from transformers import ViTConfig, ViTModel

        self.trunk = ViTModel(ViTConfig(**size.vit()), add_pooling_layer=False)
        self.classifier = nn.Linear(size.width, size.classes)

    def scores(self, pixels: Tensor) -> Tensor:
        """Class scores."""
        return self.classifier(self.trunk(pixel_values=pixels).last_hidden_state[:, 0])

    def loss(self, pixels: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Cross entropy."""
        return functional.cross_entropy(self.scores(pixels).float(), labels)


class Masked(Objective):
    """A masked autoencoder: three quarters of the patches are hidden, a small decoder fills in
    their normalized pixels."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        from transformers import ViTMAEConfig, ViTMAEForPreTraining

        config = ViTMAEConfig(
            **size.vit(),
            mask_ratio=0.75,
            norm_pix_loss=True,
            decoder_hidden_size=size.width,
            decoder_num_hidden_layers=size.head_blocks,
            decoder_num_attention_heads=size.heads,
            decoder_intermediate_size=4 * size.width,
        )
        self.whole = ViTMAEForPreTraining(config)
        self.trunk = self.whole.vit
        self.patches = (size.image // size.patch) ** 2

    def loss(self, pixels: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Mean squared error on the hidden patches; which are hidden comes from the generator."""
        noise = torch.rand(len(pixels), self.patches, generator=generator, device=pixels.device)
        return self.whole(pixel_values=pixels, noise=noise).loss


class Autoregressive(Objective):
    """AIM: every patch is predicted from those before it; a random prefix sees itself both ways.
    Read both ways afterwards."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        config = AimConfig(
            img_size=size.image,
            patch_size=size.patch,
            embed_dim=size.width,
            num_blocks=size.blocks,
            num_heads=size.heads,
            num_channels=1,
            attention="prefix",
        )
        self.trunk = AimModel(config)
        self.head = AimPixelHead(config, size.head_blocks)

    def loss(self, pixels: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Mean squared error on the normalized pixels of the patches after the prefix."""
        config: AimConfig = self.trunk.config  # type: ignore[assignment]
        prefix = torch.randint(
            1, config.patches, (len(pixels),), generator=generator, device=pixels.device
        )
        states = self.trunk(pixels, prefix).last_hidden_state
        return pixel_loss(
            self.head(states).float(), patch_targets(pixels, config.patch_size), prefix
        )

    def save(self, folder: Path) -> None:
        """In the layout of the published AIMs, to be read with every patch seeing every other, as
        they are."""
        trunk = self.trunk.half()
        trunk.config.attention = "bidirectional"  # type: ignore[union-attr]
        trunk.save_pretrained(folder)  # type: ignore[operator]


OBJECTIVES: dict[str, type[Objective]] = {
    "supervised": Supervised,
    "mae": Masked,
    "ar": Autoregressive,
}


class AimPixelHead(nn.Module):
    """Predicts pixels patch by patch: residual MLP blocks of the trunk's width, a norm and a linear
    layer.

    The head takes over what is particular to pixels, so that the trunk need not.
    """

    def __init__(self, config: AimConfig, depth: int = 2) -> None:
        super().__init__()
        width, hidden = config.embed_dim, int(config.mlp_ratio * config.embed_dim)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, config.num_channels * config.patch_size**2)

    def forward(self, states: Tensor) -> Tensor:
        """(B, N, D) to (B, N, pixels of a patch); row i is about patch i + 1."""
        for block in self.blocks:
            states = states + block(states)
        return self.out(self.norm(states))


def patch_targets(pixels: Tensor, patch: int, eps: float = 1e-6) -> Tensor:
    """The pixels of each patch in raster order (B, N, C · patch²), each patch with mean 0 and
    variance 1."""
    columns = functional.unfold(pixels, kernel_size=patch, stride=patch).transpose(1, 2)
    mean, variance = columns.mean(-1, keepdim=True), columns.var(-1, keepdim=True, unbiased=False)
    return (columns - mean) / (variance + eps).sqrt()


def pixel_loss(predicted: Tensor, targets: Tensor, prefix: Tensor | None = None) -> Tensor:
    """Mean squared error of every patch from its predecessor's state; what lies inside the prefix
    is not predicted.

    `prefix` (B,) counts the patches that see each other: patch i is predicted where i ≥ max(prefix,
    1).
    """
    errors = (predicted[:, :-1] - targets[:, 1:]).square().mean(-1)
    if prefix is None:
        return errors.mean()
    later = torch.arange(1, targets.shape[1], device=targets.device) >= prefix.to(
        targets.device
    ).reshape(-1, 1)
    return (errors * later).sum() / later.sum().clamp_min(1)
