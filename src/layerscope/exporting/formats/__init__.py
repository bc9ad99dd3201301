"""Export formats: a file with a `FORMAT` each; other packages add theirs with entry points of the
group `layerscope.formats`."""

from __future__ import annotations

from layerscope.core.plugins import Registry
from layerscope.exporting.draft import Draft, ExportFormat

__all__ = ["FORMATS", "Draft", "ExportFormat"]

FORMATS: Registry[ExportFormat] = Registry(
    "export format",
    "layerscope.formats",
    name=lambda one: one.name,
    check=lambda thing: isinstance(thing, ExportFormat),
    package=__name__,
    find=lambda module: [module.FORMAT] if hasattr(module, "FORMAT") else [],
)
