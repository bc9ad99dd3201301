"""GPT-NeoX and Pythia: attention and MLP read the same input, unless the config says otherwise."""

from __future__ import annotations

from typing import Any

from layerscope.capture.anatomy import Residual
from layerscope.models.families.base import Family


def _residual(config: Any) -> Residual:
    return "parallel" if getattr(config, "use_parallel_residual", True) else "sequential"


FAMILY = Family(
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
