"""Speech models: wav2vec 2.0, HuBERT and the encoder of Whisper. Their frames are the tokens."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from layerscope.capture.anatomy import Anatomy
from layerscope.models.families.base import Family, pre_norm_taps

_BEFORE = Family(
    name="wav2vec2",
    model_types=("wav2vec2", "hubert"),
    blocks="encoder.layers",
    final_norm="encoder.layer_norm",
    taps=pre_norm_taps("layer_norm", "attention", "final_layer_norm", "feed_forward"),
    residual="sequential",
    bidirectional=True,
    modality="sound",
)
# The base models norm after each sum; their encoder's own norm then comes before the first block.
_AFTER = replace(
    _BEFORE,
    final_norm=None,
    taps={"attn": "attention", "mid": "layer_norm", "mlp": "feed_forward"},
    residual="post-norm",
)


class Wav2Vec2Family(Family):
    """wav2vec 2.0 and HuBERT: the config says whether norms come before the branches (large models)
    or after the sums (base)."""

    def resolve(self, module: nn.Module) -> Anatomy:
        """The parts as `do_stable_layer_norm` arranges them."""
        stable = getattr(getattr(module, "config", None), "do_stable_layer_norm", False)
        return (_BEFORE if stable else _AFTER).resolve(module)


WAV2VEC2 = Wav2Vec2Family(
    **vars(
        replace(
            _AFTER,
            notes="one sound at a time: padding would change the states of models that norm over time",
        )
    )
)

WHISPER = replace(
    _BEFORE,
    name="whisper",
    model_types=("whisper",),
    blocks="layers",
    final_norm="layer_norm",
    taps=pre_norm_taps("self_attn_layer_norm", "self_attn", "final_layer_norm", "fc2"),
    notes="the encoder; sounds are padded to its window, and the frames of the sound itself are read",
)

FAMILIES = (WAV2VEC2, WHISPER)
