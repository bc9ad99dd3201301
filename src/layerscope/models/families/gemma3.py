"""Gemma 2 and 3 (text): each branch is normed again before it is added, so the branch is read after that norm."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="gemma3",
    model_types=("gemma3_text", "gemma2"),
    blocks="layers",
    final_norm="norm",
    taps={
        "norm1": "input_layernorm",
        "attn": "post_attention_layernorm",
        "mid": "pre_feedforward_layernorm.input",
        "norm2": "pre_feedforward_layernorm",
        "mlp": "post_feedforward_layernorm",
    },
    residual="sequential",
)
