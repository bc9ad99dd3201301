"""Choosing a layer and readout with a few labeled examples."""

from __future__ import annotations

from layerscope.selection.labels.select import select_with_labels

__all__ = ["select_with_labels"]
