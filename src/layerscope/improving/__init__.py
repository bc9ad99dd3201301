"""From a model and texts to a better embedding model: `start.improve`, step by step in `flow`."""

from layerscope.improving.result import Improved
from layerscope.improving.start import improve

__all__ = ["Improved", "improve"]
