"""CLIP's image model (Radford et al. 2021).

A norm stands before the first block, so layer 0 is normed; the norm after the last block is applied by the model to the class
token alone, and `applied` does the same at every layer.
"""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="clip",
    model_types=("clip_vision_model",),
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
    class_token=True,
    class_norm_only=True,
    hf_norms_last=False,
    loads="CLIPVisionModel",
    containers=("clip",),
    notes="the model applies its final norm to the class token only; patches stay raw",
)
