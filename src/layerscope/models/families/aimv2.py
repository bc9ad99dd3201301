"""AIMv2's image model (Fini et al. 2024): no class token; it reads both ways; its pooling head is not read."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="aimv2",
    model_types=("aimv2_vision_model",),
    blocks="encoder.layers",
    final_norm="rms_norm",
    taps={
        "norm1": "rms_norm1",
        "attn": "attention",
        "mid": "rms_norm2.input",
        "norm2": "rms_norm2",
        "mlp": "ffn",
    },
    residual="sequential",
    bidirectional=True,
    modality="image",
    hf_norms_last=False,
    loads="Aimv2VisionModel",
    containers=("aimv2",),
)
