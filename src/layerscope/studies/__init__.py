"""Studies: the paper's experiments, one file each. `layerscope.study(name, *models)` runs one; see `layerscope study list`."""

from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.registry import get_study, studies

__all__ = ["Option", "Request", "Result", "Study", "get_study", "studies"]
