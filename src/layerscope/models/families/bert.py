"""BERT: the norm comes after each sum, so `mid` and the block output are themselves normed and no norm is left over."""

from __future__ import annotations

from layerscope.models.families.base import Family

FAMILY = Family(
    name="bert",
    model_types=("bert",),
    blocks="encoder.layer",
    final_norm=None,
    # The dense outputs are the branches as added; the dropout between them and the sum is off.
    taps={"attn": "attention.output.dense", "mid": "attention.output", "mlp": "output.dense"},
    residual="post-norm",
    bidirectional=True,
)
