"""Choosing a layer and readout with a few labeled examples."""

from __future__ import annotations

from layerscope.selection.labels.select import LabeledChoice, select_with_labels

__all__ = ["LabeledChoice", "select_with_labels"]
