"""Text decoders: Llama-like blocks, Gemma, GPT-2, GPT-NeoX, and the state-space models.

A new family is one more entry here, a file of its own in this folder, or an entry point `layerscope.families`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from layerscope.capture.anatomy import Residual
from layerscope.models.families.base import Family

# Llama and the decoders with its block: norm, attention, add, norm, MLP, add.
LLAMA = Family(
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

# Gemma 2 and 3 (text): each branch is normed again before it is added, so the branch is read after that norm.
GEMMA3 = Family(
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

# GPT-2.
GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    blocks="h",
    final_norm="ln_f",
    taps={"norm1": "ln_1", "attn": "attn", "mid": "ln_2.input", "norm2": "ln_2", "mlp": "mlp"},
    residual="sequential",
)


# GPT-NeoX and Pythia: attention and MLP read the same input, unless the config says otherwise.
def _residual(config: Any) -> Residual:
    return "parallel" if getattr(config, "use_parallel_residual", True) else "sequential"


GPT_NEOX = Family(
    name="gpt_neox",
    model_types=("gpt_neox",),
    blocks="layers",
    final_norm="final_layer_norm",
    taps={
        "norm1": "input_layernorm",
        "attn": "attention",
        "mid": "post_attention_layernorm.input",
        "norm2": "post_attention_layernorm",
        "mlp": "mlp",
    },
    residual=_residual,
)

# Mamba: one mixer per block, which counts as `attn`.
MAMBA = Family(
    name="mamba",
    model_types=("mamba", "falcon_mamba"),
    blocks="layers",
    final_norm="norm_f",
    taps={"norm1": "norm", "attn": "mixer"},
    residual="single",
)

# Mamba 2: one mixer per block, which counts as `attn`.
MAMBA2 = replace(MAMBA, name="mamba2", model_types=("mamba2",))

FAMILIES = (LLAMA, GEMMA3, GPT2, GPT_NEOX, MAMBA, MAMBA2)
