"""Choosing a layer and readout with a few labelled examples."""

from __future__ import annotations

from layerscope.selection.labels.choice import LabelledChoice
from layerscope.selection.labels.select import select_with_labels

__all__ = ["LabelledChoice", "select_with_labels"]
