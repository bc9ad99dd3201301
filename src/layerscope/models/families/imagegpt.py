"""ImageGPT (Chen et al. 2020): pixels as words of a palette, in raster order, each seeing those before it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from layerscope.models.families.base import Family


class ImageGptFamily(Family):
    """As GPT-2; the processor turns an image into token ids, one per pixel."""

    def call(self, module: nn.Module, pixels: Tensor) -> Any:
        """`pixels` are palette numbers (B, pixels)."""
        return module(input_ids=pixels, use_cache=False)


FAMILY = ImageGptFamily(
    name="imagegpt",
    model_types=("imagegpt",),
    blocks="h",
    final_norm="ln_f",
    taps={"norm1": "ln_1", "attn": "attn", "mid": "ln_2.input", "norm2": "ln_2", "mlp": "mlp"},
    residual="sequential",
    modality="image",
    notes="tokens are pixels; no start token is put before them",
)
