"""From a model and texts to a better embedding model: every layer under every readout is judged, the best is exported."""

from layerscope.improving.job import improve
from layerscope.improving.result import Improved

__all__ = ["Improved", "improve"]
