"""The family of MobileSAM's image encoder (`tiny_vit.py` is the architecture)."""

from __future__ import annotations

from layerscope_media.image_family import ImageFamily

# TinyViT (Wu et al. 2022), its third stage: the longest run of blocks of one width.
TINY_VIT = ImageFamily(
    name="tiny_vit",
    model_types=("tiny_vit_stage",),
    blocks="layers.2.blocks",
    final_norm=None,
    # A convolution between the two branches takes the state's place: they do not add up to the
    # block's output.
    taps={"attn": "attn", "mlp": "mlp"},
    bidirectional=True,
    hf_norms_last=False,
    loads="layerscope_zoo.tiny_vit:TinyVitModel",
    notes="layers are the blocks of the third stage; attention sees a window of 14 × 14 tokens",
)

FAMILIES = (TINY_VIT,)
