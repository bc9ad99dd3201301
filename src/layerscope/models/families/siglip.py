"""SigLIP's image model (Zhai et al. 2023): no class token; its pooling head is not read."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="siglip",
    model_types=("siglip_vision_model",),
    blocks="encoder.layers|vision_model.encoder.layers",
    final_norm="post_layernorm|vision_model.post_layernorm",
    taps={
        "norm1": "layer_norm1",
        "attn": "self_attn",
        "mid": "layer_norm2.input",
        "norm2": "layer_norm2",
        "mlp": "mlp",
    },
    residual="sequential",
    bidirectional=True,
    modality="image",
    hf_norms_last=False,
    loads="SiglipVisionModel",
    containers=("siglip",),
)
