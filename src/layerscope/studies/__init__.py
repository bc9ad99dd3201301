"""Studies: the paper's experiments, one file each. `layerscope.study(name, *models)` runs one; see
`layerscope study list`."""

from layerscope.studies.base import STUDIES, Option, Result, Study
from layerscope.studies.shared.models import Request

__all__ = ["STUDIES", "Option", "Request", "Result", "Study"]
