"""AIM (El-Nouby et al. 2024), the autoregressive image model: no class token, a norm after the last block.

Which patches see which is a setting of the loaded model (`attention=`); the architecture is in `models/architectures/aim.py`.
"""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="aim",
    model_types=("aim",),
    blocks="trunk.blocks",
    final_norm="trunk.post_trunk_norm",
    taps={"norm1": "norm_1", "attn": "attn", "mid": "norm_2.input", "norm2": "norm_2", "mlp": "mlp"},
    residual="sequential",
    modality="image",
    hf_norms_last=False,
)
