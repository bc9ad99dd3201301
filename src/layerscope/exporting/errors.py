"""What can go wrong with an export on purpose."""

from __future__ import annotations

from layerscope.errors import LayerscopeError


class ExportError(LayerscopeError):
    """A model or readout that cannot be exported, or an export that does not give back what was measured."""
