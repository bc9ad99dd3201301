"""layerscope: what every layer of a neural network holds, and which layer to read embeddings from.

    import layerscope
    run = layerscope.profile("smollm2-135m", "lee", limit=50)
    run.table

Importing the package loads nothing heavy: `layerscope.metrics` alone needs only torch and numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.version import VERSION as __version__

__all__ = [
    "Choice",
    "Evaluation",
    "LayerscopeError",
    "ProbeRun",
    "Run",
    "StudyRun",
    "__version__",
    "atlas",
    "correlate",
    "evaluate",
    "export",
    "load",
    "load_corpus",
    "load_images",
    "probe",
    "profile",
    "select",
    "study",
    "sweep",
    "wrap",
    "write_report",
]

_HOMES = {
    "correlate": "layerscope.correlation",
    "export": "layerscope.exporting",
    "Choice": "layerscope.selection",
    "select": "layerscope.selection",
    "write_report": "layerscope.report",
    "Evaluation": "layerscope.evaluation.run",
    "evaluate": "layerscope.evaluation.job",
    "LayerscopeError": "layerscope.errors",
    "Run": "layerscope.profiling.run",
    "load": "layerscope.models",
    "load_corpus": "layerscope.data",
    "load_images": "layerscope.data.images",
    "probe": "layerscope.probing",
    "profile": "layerscope.profiling.job",
    "ProbeRun": "layerscope.probing",
    "StudyRun": "layerscope.studies.run",
    "study": "layerscope.studies.run",
    "sweep": "layerscope.sweeps",
    "wrap": "layerscope.models",
}

if TYPE_CHECKING:
    from layerscope.correlation import correlate
    from layerscope.data import load_corpus
    from layerscope.data.images import load_images
    from layerscope.errors import LayerscopeError
    from layerscope.evaluation.job import evaluate
    from layerscope.evaluation.run import Evaluation
    from layerscope.exporting import export
    from layerscope.models import load, wrap
    from layerscope.probing import ProbeRun, probe
    from layerscope.profiling import Run, profile
    from layerscope.report import write_report
    from layerscope.selection.choice import Choice
    from layerscope.selection.select import select
    from layerscope.studies.run import StudyRun, study
    from layerscope.sweeps import sweep


def __getattr__(name: str) -> Any:
    import importlib

    if name == "atlas":  # a module, and a name that users expect to be there
        return importlib.import_module("layerscope.atlas")
    if name not in _HOMES:
        raise AttributeError(f"module 'layerscope' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
