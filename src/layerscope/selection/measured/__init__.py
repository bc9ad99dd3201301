"""The choice from an evaluation's scores, honest about what picking the best of many does to the promise."""

from layerscope.selection.measured.choose import choose_measured

__all__ = ["choose_measured"]
