"""Text models. Decoders: Llama-like blocks, Gemma, GPT-2, GPT-NeoX, and the state-space models.
Encoders: BERT and those with its block, and the newer ones with a norm before each branch.

A new family is one more entry here, a file of its own in this folder, or an entry point
`layerscope.families`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from layerscope.capture.anatomy import Residual
from layerscope.models.families.base import Family, pre_norm_taps

# Llama and the decoders with its block: norm, attention, add, norm, MLP, add.
LLAMA = Family(
    name="llama",
    model_types=(
        "llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3", "gemma", "phi3", "olmo", "starcoder2", "arcee",
        "cwm", "ernie4_5", "glm", "helium", "seed_oss", "hunyuan_v1_dense",
    ),
    blocks="layers",
    final_norm="norm",
    taps=pre_norm_taps("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"),
    residual="sequential",
)  # fmt: skip

# Gemma 2 and 3 (text): each branch is normed again before it is added, so the branch is read after
# that norm.
GEMMA3 = replace(
    LLAMA,
    name="gemma3",
    model_types=("gemma3_text", "gemma2"),
    taps=pre_norm_taps(
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
)

# GPT-2.
GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    blocks="h",
    final_norm="ln_f",
    taps=pre_norm_taps("ln_1", "attn", "ln_2", "mlp"),
    residual="sequential",
)


# GPT-NeoX and Pythia: attention and MLP read the same input, unless the config says otherwise.
def _residual(config: Any) -> Residual:
    return "parallel" if getattr(config, "use_parallel_residual", True) else "sequential"


GPT_NEOX = replace(
    LLAMA,
    name="gpt_neox",
    model_types=("gpt_neox",),
    final_norm="final_layer_norm",
    taps=pre_norm_taps("input_layernorm", "attention", "post_attention_layernorm", "mlp"),
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

# BERT: the norm comes after each sum, so `mid` and the block output are themselves normed and no
# norm is left over.
BERT = Family(
    name="bert",
    model_types=("bert",),
    blocks="encoder.layer",
    final_norm=None,
    # The dense outputs are the branches as added; the dropout between them and the sum is off.
    taps={"attn": "attention.output.dense", "mid": "attention.output", "mlp": "output.dense"},
    residual="post-norm",
    bidirectional=True,
)

# RoBERTa and the encoders with its block, which is BERT's.
ROBERTA = replace(BERT, name="roberta", model_types=("roberta", "xlm-roberta", "camembert"))

# MPNet: BERT's block with the attention's parts under other names.
MPNET = replace(
    BERT,
    name="mpnet",
    model_types=("mpnet",),
    taps={"attn": "attention.attn.o", "mid": "attention.LayerNorm", "mlp": "output.dense"},
)

# ModernBERT: a pre-norm encoder. Its embeddings are normed, so the first block's attention norm is
# an identity.
MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    blocks="layers",
    final_norm="final_norm",
    taps=pre_norm_taps("attn_norm", "attn", "mlp_norm", "mlp"),
    residual="sequential",
    bidirectional=True,
)

# EuroBERT: Llama's block in an encoder.
EUROBERT = replace(LLAMA, name="eurobert", model_types=("eurobert",), bidirectional=True)

FAMILIES = (
    LLAMA,
    GEMMA3,
    GPT2,
    GPT_NEOX,
    MAMBA,
    MAMBA2,
    BERT,
    ROBERTA,
    MPNET,
    MODERNBERT,
    EUROBERT,
)
