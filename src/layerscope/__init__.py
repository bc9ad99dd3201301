"""layerscope: what every layer of a neural network holds, and which layer to read embeddings from.

    import layerscope
    run = layerscope.profile("smollm2-135m", "lee", limit=50)
    run.table

Importing the package loads nothing heavy: every public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from layerscope.version import VERSION as __version__

if TYPE_CHECKING:
    from layerscope.choose.choice import Choice
    from layerscope.choose.select import select
    from layerscope.core.readout import Readout
    from layerscope.core.runs import load_run
    from layerscope.embedding import compare, embed, encode, search
    from layerscope.errors import LayerscopeError
    from layerscope.evaluation.job import evaluate
    from layerscope.evaluation.run import Evaluation
    from layerscope.exporting import Exported, export
    from layerscope.improving import Improved, improve
    from layerscope.models.load import load, wrap
    from layerscope.probing import ProbeRun, probe
    from layerscope.profiling import Profile, profile
    from layerscope.report.page import write_report

# Threads of PyTorch that wait for each other sleep instead of spinning, which takes half of the CPU
# time, and of the time by the clock where cores are shared. It counts for what is imported later.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__all__ = [
    "Choice",
    "Evaluation",
    "Exported",
    "Improved",
    "LayerscopeError",
    "ProbeRun",
    "Profile",
    "Readout",
    "__version__",
    "compare",
    "embed",
    "encode",
    "evaluate",
    "export",
    "improve",
    "load",
    "load_run",
    "probe",
    "profile",
    "search",
    "select",
    "wrap",
    "write_report",
]

_HOMES = {
    "choose.choice": ("Choice",),
    "choose.select": ("select",),
    "core.readout": ("Readout",),
    "core.runs": ("load_run",),
    "embedding": ("compare", "embed", "encode", "search"),
    "errors": ("LayerscopeError",),
    "evaluation.job": ("evaluate",),
    "evaluation.run": ("Evaluation",),
    "exporting": ("Exported", "export"),
    "improving": ("Improved", "improve"),
    "models": ("load", "wrap"),
    "probing": ("ProbeRun", "probe"),
    "profiling.job": ("profile",),
    "profiling.run": ("Profile",),
    "report.page": ("write_report",),
}
"""The modules of the public names, which are imported when a name is first used."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"layerscope.{module}"), name)
    raise AttributeError(
        f"module 'layerscope' has no attribute {name!r}. Public names: {', '.join(__all__)}."
    )


def __dir__() -> list[str]:
    return sorted(__all__)
