"""BEiT (Bao et al. 2022): a class token, and a layer scale that each block applies by itself.

A model that pools over patches (`use_mean_pooling`) norms only what it has pooled: it has no final norm. The others norm every
token after the last block.
"""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="beit",
    model_types=("beit",),
    blocks="layers|encoder.layer",
    final_norm=lambda config: None if config.use_mean_pooling else "layernorm",
    taps={
        "norm1": "layernorm_before",
        "attn": "attention * lambda_1",
        "mid": "layernorm_after.input",
        "norm2": "layernorm_after",
        "mlp": "mlp|output * lambda_2",
    },
    residual="sequential",
    bidirectional=True,
    modality="image",
    class_token=True,
    hf_norms_last=False,
    notes="branches are read after their layer scale",
)
