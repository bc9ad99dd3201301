"""Which layer to read: label-free rules designed on the atlas, the choice from measured scores, and
from a few labels."""

from layerscope.selection.choice import Choice, gains_in_words, lines
from layerscope.selection.choose import select

__all__ = ["Choice", "gains_in_words", "lines", "select"]
