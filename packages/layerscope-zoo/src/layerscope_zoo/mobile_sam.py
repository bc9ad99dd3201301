"""The family of MobileSAM's image encoder (`tiny_vit.py` is the architecture)."""

from __future__ import annotations

from layerscope_media.image_family import ImageFamily

# The third stage of TinyViT (Wu et al. 2022), which has the most blocks of one width.
TINY_VIT = ImageFamily(
    name="tiny_vit",
    model_types=("tiny_vit_stage",),
    blocks="layers.2.blocks",
    final_norm=None,
    # A convolution between the two branches replaces the state, so the branches do not add up to
    # the block's output.
    taps={"attn": "attn", "mlp": "mlp"},
    bidirectional=True,
    hf_norms_last=False,
    loads="layerscope_zoo.tiny_vit:TinyVitModel",
    notes="layers are the blocks of the third stage; attention stays in windows of 14 × 14 tokens",
)

FAMILIES = (TINY_VIT,)
