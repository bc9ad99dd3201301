"""Layer by Layer (Skean et al., ICML 2025): its published results, and its experiments as studies.

from layerscope_paper import atlas, correlate, study, sweep
atlas.metric_values("Pythia-410m", "wikitext", "entropy_prompt")
study("extreme", "smollm2-135m", data="lee").verdict
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerscope_paper import atlas
    from layerscope_paper.correlation import Correlations, correlate
    from layerscope_paper.studies.run import StudyRun, study
    from layerscope_paper.sweeps.run import Sweep, sweep

__all__ = ["Correlations", "StudyRun", "Sweep", "atlas", "correlate", "study", "sweep"]

_MODULES = {
    "correlation": ("Correlations", "correlate"),
    "studies.run": ("StudyRun", "study"),
    "sweeps.run": ("Sweep", "sweep"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"layerscope_paper.{module}"), name)
    if name in __all__:
        return importlib.import_module(f"layerscope_paper.{name}")
    raise AttributeError(f"module 'layerscope_paper' has no attribute {name!r}")
