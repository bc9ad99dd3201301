"""MPNet: BERT's block with the attention's parts under other names."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="mpnet",
    model_types=("mpnet",),
    blocks="encoder.layer",
    final_norm=None,
    taps={"attn": "attention.attn.o", "mid": "attention.LayerNorm", "mlp": "output.dense"},
    residual="post-norm",
    bidirectional=True,
)
