"""Which layer to read: label-free rules designed on the atlas, the choice from measured scores, and from a few labels."""

from layerscope.core.sites import site_of
from layerscope.selection.choice import Choice
from layerscope.selection.select import select

__all__ = ["Choice", "select", "site_of"]
