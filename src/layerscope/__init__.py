"""layerscope: what every layer of a neural network holds, and which layer to read embeddings from.

    import layerscope
    run = layerscope.profile("smollm2-135m", "lee", limit=50)
    run.table

Importing the package loads nothing heavy: `layerscope.metrics` alone needs only torch and numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Evaluation", "LayerscopeError", "Run", "evaluate", "load", "load_corpus", "profile", "wrap"]

_HOMES = {
    "Evaluation": "layerscope.evaluation.run",
    "evaluate": "layerscope.evaluation.job",
    "LayerscopeError": "layerscope.errors",
    "Run": "layerscope.profiling.run",
    "load": "layerscope.models",
    "load_corpus": "layerscope.data",
    "profile": "layerscope.profiling.job",
    "wrap": "layerscope.models",
}

if TYPE_CHECKING:
    from layerscope.data import load_corpus
    from layerscope.errors import LayerscopeError
    from layerscope.evaluation.job import evaluate
    from layerscope.evaluation.run import Evaluation
    from layerscope.models import load, wrap
    from layerscope.profiling import Run, profile


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'layerscope' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
