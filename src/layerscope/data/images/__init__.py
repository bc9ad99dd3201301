"""Images to profile or probe a model on: folders, parquet files, hub datasets, catalogued sets; and
their views."""

from __future__ import annotations

from layerscope.data.images.imageset import ImageSet
from layerscope.data.images.load import load_images
from layerscope.data.images.pixels import PixelPreparation, PixelReader

__all__ = ["ImageSet", "PixelPreparation", "PixelReader", "load_images"]
