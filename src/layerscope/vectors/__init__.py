"""The vectors of texts: how texts are encoded, and the store that keeps what was encoded."""

from __future__ import annotations

from layerscope.vectors.shard import Shard, text_key
from layerscope.vectors.store import (
    DEFAULT_SIZE,
    MissingVectorsError,
    VectorSpace,
    VectorStore,
)

__all__ = [
    "DEFAULT_SIZE",
    "MissingVectorsError",
    "Shard",
    "VectorSpace",
    "VectorStore",
    "text_key",
]
