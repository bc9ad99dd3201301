"""Images and speech for layerscope: items, models and their families."""

from __future__ import annotations

from layerscope_media.image_model import ImageModel
from layerscope_media.imageset import ImageSet, ImageSetEntry
from layerscope_media.load import load_images
from layerscope_media.pixels import PixelPreparation
from layerscope_media.sound_model import SoundModel
from layerscope_media.sounds import SoundSet, load_sounds

__all__ = [
    "ImageModel",
    "ImageSet",
    "ImageSetEntry",
    "PixelPreparation",
    "SoundModel",
    "SoundSet",
    "load_images",
    "load_sounds",
]
