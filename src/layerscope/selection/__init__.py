"""Which layer to read: label-free rules designed on the atlas, the choice from measured scores, and from a few labels."""

from layerscope.selection.choice import Choice, site_of
from layerscope.selection.select import select

__all__ = ["Choice", "select", "site_of"]
