"""Text encoders: BERT and the encoders with its block, and the newer ones with a norm before each branch.

A new family is one more entry here, a file of its own in this folder, or an entry point `layerscope.families`.
"""

from __future__ import annotations

from dataclasses import replace

from layerscope.models.families.base import Family
from layerscope.models.families.decoders import LLAMA

# BERT: the norm comes after each sum, so `mid` and the block output are themselves normed and no norm is left over.
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

# ModernBERT: a pre-norm encoder. Its embeddings are normed, so the first block's attention norm is an identity.
MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    blocks="layers",
    final_norm="final_norm",
    taps={"norm1": "attn_norm", "attn": "attn", "mid": "mlp_norm.input", "norm2": "mlp_norm", "mlp": "mlp"},
    residual="sequential",
    bidirectional=True,
)

# EuroBERT: Llama's block in an encoder.
EUROBERT = replace(LLAMA, name="eurobert", model_types=("eurobert",), bidirectional=True)

FAMILIES = (BERT, ROBERTA, MPNET, MODERNBERT, EUROBERT)
