"""Image models: their processors, their batches, their states."""

from __future__ import annotations

from layerscope.data.images.preparation import PixelPreparation, default_preparation
from layerscope.models.images.model import ImageModel

__all__ = ["ImageModel", "PixelPreparation", "default_preparation"]
