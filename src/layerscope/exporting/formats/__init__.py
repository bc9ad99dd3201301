"""Export formats: a file with a `FORMAT` each; other packages add theirs with entry points of the
group `layerscope.exports`."""

from __future__ import annotations

from layerscope.core.plugins import Registry
from layerscope.exporting.draft import ExportFormat

__all__ = ["BASE_FORMAT", "FORMATS", "ExportFormat"]

BASE_FORMAT = "sentence-transformers"

FORMATS: Registry[ExportFormat] = Registry(
    "export format",
    "layerscope.exports",
    name=lambda one: one.name,
    check=lambda thing: isinstance(thing, ExportFormat),
    package=__name__,
    find=lambda module: [module.FORMAT] if hasattr(module, "FORMAT") else [],
)
