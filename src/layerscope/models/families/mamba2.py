"""Mamba 2: one mixer per block, which counts as `attn`."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="mamba2",
    model_types=("mamba2",),
    blocks="layers",
    final_norm="norm_f",
    taps={"norm1": "norm", "attn": "mixer"},
    residual="single",
)
