"""The linear probe on the vector that a family itself summarises an item by."""

from __future__ import annotations

from layerscope.probing.heads.pooled import PooledHead


class LinearHead(PooledHead):
    """The class token where the family has one, else the mean over tokens; then a linear layer."""

    name = "linear"
    summary = "the class token (or the mean over tokens where there is none), then a linear layer"
    pooling = "summary"


HEAD = LinearHead
