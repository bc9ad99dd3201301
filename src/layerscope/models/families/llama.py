"""Llama and the decoders with its block: norm, attention, add, norm, MLP, add."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="llama",
    model_types=(
        "llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "gemma", "phi3", "olmo", "starcoder2", "arcee",
        "cwm", "ernie4_5", "glm", "helium", "seed_oss", "hunyuan_v1_dense",
    ),
    blocks="layers",
    final_norm="norm",
    taps={
        "norm1": "input_layernorm",
        "attn": "self_attn",
        "mid": "post_attention_layernorm.input",
        "norm2": "post_attention_layernorm",
        "mlp": "mlp",
    },
    residual="sequential",
)  # fmt: skip
