"""Image sets that can be asked for by name: one file each, found by looking into this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from layerscope.data.images.found import Found
from layerscope.data.images.sets.base import ImageSetEntry
from layerscope.errors import DataError

__all__ = ["ImageSetEntry", "image_sets", "read_set"]


@cache
def image_sets() -> dict[str, ImageSetEntry]:
    """Every catalogued image set by name.

    >>> sorted(image_sets())
    ['digits', 'fashion-mnist']
    """
    found = {}
    for info in pkgutil.iter_modules(__path__):
        entry = getattr(importlib.import_module(f"{__name__}.{info.name}"), "ENTRY", None)
        if isinstance(entry, ImageSetEntry):
            found[entry.name] = entry
    return found


def read_set(name: str, split: str | None, offline: bool) -> Found:
    """The images of a catalogued set; the first split where none is named."""
    entry = image_sets()[name]
    chosen = split or entry.splits[0]
    if chosen not in entry.splits:
        raise DataError(f"{name} has no split {chosen!r}. It has: {', '.join(entry.splits)}.")
    images, labels = entry.read(chosen, offline)
    facts = {"split": chosen, "licence": entry.licence, "citation": entry.citation, "version": entry.version}
    names = [f"{name} {chosen} {i}" for i in range(len(images))]
    return Found("catalogue", name, name, list(images), names, labels, entry.classes, facts)
