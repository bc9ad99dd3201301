"""Studies: the paper's experiments, one file each. `layerscope.study(name, *models)` runs one; see `layerscope study list`."""

from layerscope.studies.base import Option, Result, Study, get_study, studies
from layerscope.studies.shared.models import Request

__all__ = ["Option", "Request", "Result", "Study", "get_study", "studies"]
