"""GPT-2."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    blocks="h",
    final_norm="ln_f",
    taps={"norm1": "ln_1", "attn": "attn", "mid": "ln_2.input", "norm2": "ln_2", "mlp": "mlp"},
    residual="sequential",
)
