"""A model cut at a layer, as a folder that other tools load."""

from __future__ import annotations

from layerscope.errors import ExportError
from layerscope.exporting.job import Exported, export

__all__ = ["ExportError", "Exported", "export"]
