"""RoBERTa and the encoders with its block, which is BERT's."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    blocks="encoder.layer",
    final_norm=None,
    taps={"attn": "attention.output.dense", "mid": "attention.output", "mlp": "output.dense"},
    residual="post-norm",
    bidirectional=True,
)
