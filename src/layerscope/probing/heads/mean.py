"""The linear probe on the mean over tokens."""

from __future__ import annotations

from layerscope.probing.heads.pooled import PooledHead


class MeanHead(PooledHead):
    """The mean over tokens (of an image: over its patches), then a linear layer."""

    name = "mean"
    summary = "the mean over the patches (or the text's tokens), then a linear layer"
    pooling = "mean"


HEAD = MeanHead
