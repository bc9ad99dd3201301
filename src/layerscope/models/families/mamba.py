"""Mamba: one mixer per block, which counts as `attn`."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="mamba",
    model_types=("mamba", "falcon_mamba"),
    blocks="layers",
    final_norm="norm_f",
    taps={"norm1": "norm", "attn": "mixer"},
    residual="single",
)
