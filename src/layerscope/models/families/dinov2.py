"""DINOv2 (Oquab et al. 2023): a class token, and a layer scale on each branch, which is read after it."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="dinov2",
    model_types=("dinov2",),
    blocks="encoder.layer|layers",
    final_norm="layernorm",
    taps={
        "norm1": "norm1",
        "attn": "layer_scale1",
        "mid": "norm2.input",
        "norm2": "norm2",
        "mlp": "layer_scale2",
    },
    residual="sequential",
    bidirectional=True,
    modality="image",
    class_token=True,
    hf_norms_last=False,
    notes="branches are read after their layer scale",
)
