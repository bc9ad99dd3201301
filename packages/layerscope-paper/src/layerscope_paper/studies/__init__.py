"""Studies: the paper's experiments, one file each.

`layerscope_paper.study(name, *models)` runs one; `layerscope-paper study list` lists them.
"""

from layerscope_paper.studies.base import STUDIES, Option, Result, Study
from layerscope_paper.studies.shared.models import Request

__all__ = ["STUDIES", "Option", "Request", "Result", "Study"]
