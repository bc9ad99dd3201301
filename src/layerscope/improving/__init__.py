"""From a model and texts to a better embedding model: every layer under every readout is judged,
the best is exported."""

from layerscope.improving.job import improve
from layerscope.improving.result import Improved
from layerscope.improving.retrieving import SearchJob

__all__ = ["Improved", "SearchJob", "improve"]
