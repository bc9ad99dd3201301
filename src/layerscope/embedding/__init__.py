"""Vectors of texts: of all layers at once, of a million texts in a file, found by a question,
compared between models."""

from layerscope.embedding.comparing import ModelComparison, compare
from layerscope.embedding.encoders import encode
from layerscope.embedding.searching import search
from layerscope.embedding.writing import embed

__all__ = ["ModelComparison", "compare", "embed", "encode", "search"]
