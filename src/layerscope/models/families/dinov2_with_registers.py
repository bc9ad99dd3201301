"""DINOv2 with registers (Darcet et al. 2024): the class token, then the registers, then the patches."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="dinov2_with_registers",
    model_types=("dinov2_with_registers",),
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
    registers=lambda config: int(config.num_register_tokens),
    hf_norms_last=False,
    notes="branches are read after their layer scale",
)
