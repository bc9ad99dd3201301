"""ModernBERT: a pre-norm encoder. Its embeddings are normed, so the first block's attention norm is an identity."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="modernbert",
    model_types=("modernbert",),
    blocks="layers",
    final_norm="final_norm",
    taps={"norm1": "attn_norm", "attn": "attn", "mid": "mlp_norm.input", "norm2": "mlp_norm", "mlp": "mlp"},
    residual="sequential",
    bidirectional=True,
)
