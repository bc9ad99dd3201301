"""ViT (Dosovitskiy et al. 2021), supervised or not: one class token, pre-norm blocks, a norm after the last."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="vit",
    model_types=("vit",),
    blocks="layers|encoder.layer",
    final_norm="layernorm",
    taps={
        "norm1": "layernorm_before",
        "attn": "attention",
        "mid": "layernorm_after.input",
        "norm2": "layernorm_after",
        "mlp": "mlp|output.dense",
    },
    residual="sequential",
    bidirectional=True,
    modality="image",
    class_token=True,
    hf_norms_last=False,
)
