"""ViT-MAE (He et al. 2022): the encoder, with nothing masked and the patches in their places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from layerscope.models.families.base import Family
from layerscope.models.families.vit import FAMILY as VIT


class MaeFamily(Family):
    """The encoder hides most patches and shuffles the rest, which is for training: neither is wanted here."""

    def call(self, module: nn.Module, pixels: Tensor) -> Any:
        """Run with mask ratio 0 and noise that rises along the patches, which is the order they come in."""
        config: Any = module.config
        embeddings: Any = module.embeddings
        patches = int(embeddings.patch_embeddings.num_patches)
        noise = torch.arange(patches, device=pixels.device, dtype=torch.float32).expand(len(pixels), -1)
        ratio, config.mask_ratio = config.mask_ratio, 0.0
        try:
            return module(pixel_values=pixels, noise=noise)
        finally:
            config.mask_ratio = ratio  # the user's own module goes on as it was


FAMILY = MaeFamily(
    **vars(replace(VIT, name="vit_mae", model_types=("vit_mae",), notes="no patch is masked, and none changes its place"))
)
