"""The vectors of texts: how texts are encoded, and the store that keeps what was encoded."""

from __future__ import annotations

from layerscope.vectors.store import (
    DEFAULT_SIZE,
    MissingVectorsError,
    Shard,
    VectorSpace,
    VectorStore,
    text_key,
)

__all__ = [
    "DEFAULT_SIZE",
    "MissingVectorsError",
    "Shard",
    "VectorSpace",
    "VectorStore",
    "text_key",
]
