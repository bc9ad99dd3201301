"""The controlled set: models of one depth, width, text and order of batches that differ in one
thing.

`ar` is an autoregressive transformer, `mlm` the same transformer from the same first weights as a
masked-language model, `mamba` a state-space model. `python -m layerscope_paper.controlled` trains
them; the study `penalties` trains `ar` with a penalty on the entropy of its middle layers.
"""

from layerscope_paper.controlled.model import OBJECTIVES, build
from layerscope_paper.controlled.penalty import LayerPenalty, token_entropies
from layerscope_paper.controlled.train import Plan, Streams, read_texts, save, train

__all__ = [
    "OBJECTIVES",
    "LayerPenalty",
    "Plan",
    "Streams",
    "build",
    "read_texts",
    "save",
    "token_entropies",
    "train",
]
