"""layerscope: what every layer of a neural network holds, and which layer to read embeddings from.

    import layerscope
    run = layerscope.profile("smollm2-135m", "lee", limit=50)
    run.table

Importing the package loads nothing heavy: every public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from layerscope.version import VERSION as __version__

if TYPE_CHECKING:
    from layerscope import atlas, metrics, training
    from layerscope.core.options import DataOptions, EngineOptions, ModelOptions
    from layerscope.core.runs import AnyRun, load_run
    from layerscope.correlation import Correlations, correlate
    from layerscope.data import Corpus, load_corpus
    from layerscope.data.images import ImageSet, load_images
    from layerscope.errors import LayerscopeError
    from layerscope.evaluation.job import evaluate
    from layerscope.evaluation.run import Evaluation
    from layerscope.exporting import Exported, export
    from layerscope.improving import Improved, improve
    from layerscope.models import LoadedModel, load, wrap
    from layerscope.probing import ProbeRun, probe
    from layerscope.profiling import Profile, profile
    from layerscope.report import write_report
    from layerscope.report.comparing import Comparison, compare
    from layerscope.selection.choice import Choice
    from layerscope.selection.labels import select_with_labels
    from layerscope.selection.select import select
    from layerscope.studies.run import StudyRun, study
    from layerscope.sweeps import sweep
    from layerscope.sweeps.run import Sweep

__all__ = [
    "AnyRun",
    "Choice",
    "Comparison",
    "Corpus",
    "Correlations",
    "DataOptions",
    "EngineOptions",
    "Evaluation",
    "Exported",
    "ImageSet",
    "Improved",
    "LayerscopeError",
    "LoadedModel",
    "ModelOptions",
    "ProbeRun",
    "Profile",
    "StudyRun",
    "Sweep",
    "__version__",
    "atlas",
    "compare",
    "correlate",
    "evaluate",
    "export",
    "improve",
    "load",
    "load_corpus",
    "load_images",
    "load_run",
    "metrics",
    "probe",
    "profile",
    "select",
    "select_with_labels",
    "study",
    "sweep",
    "training",
    "wrap",
    "write_report",
]

# Where each public name lives. A name without a home of its own is a module of the package.
_HOMES = {
    "AnyRun": "layerscope.core.runs",
    "Choice": "layerscope.selection",
    "Comparison": "layerscope.report.comparing",
    "Corpus": "layerscope.data",
    "Correlations": "layerscope.correlation",
    "DataOptions": "layerscope.core.options",
    "EngineOptions": "layerscope.core.options",
    "Evaluation": "layerscope.evaluation.run",
    "Exported": "layerscope.exporting",
    "ImageSet": "layerscope.data.images",
    "Improved": "layerscope.improving",
    "LayerscopeError": "layerscope.errors",
    "LoadedModel": "layerscope.models",
    "ModelOptions": "layerscope.core.options",
    "ProbeRun": "layerscope.probing",
    "Profile": "layerscope.profiling.run",
    "StudyRun": "layerscope.studies.run",
    "Sweep": "layerscope.sweeps.run",
    "compare": "layerscope.report.comparing",
    "correlate": "layerscope.correlation",
    "evaluate": "layerscope.evaluation.job",
    "export": "layerscope.exporting",
    "improve": "layerscope.improving",
    "load": "layerscope.models",
    "load_corpus": "layerscope.data",
    "load_images": "layerscope.data.images",
    "load_run": "layerscope.core.runs",
    "probe": "layerscope.probing",
    "profile": "layerscope.profiling.job",
    "select": "layerscope.selection",
    "select_with_labels": "layerscope.selection.labels",
    "study": "layerscope.studies.run",
    "sweep": "layerscope.sweeps",
    "wrap": "layerscope.models",
    "write_report": "layerscope.report",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"layerscope.{name}")
    raise AttributeError(f"module 'layerscope' has no attribute {name!r}. Public names: {', '.join(__all__)}.")


def __dir__() -> list[str]:
    return sorted(__all__)
