"""Image sets that can be asked for by name: one file each; other packages add theirs as entry points `layerscope.images`."""

from __future__ import annotations

from layerscope.catalogue import Catalogue
from layerscope.data.images.imageset import ImageSetEntry, ListedImages
from layerscope.errors import DataError

__all__ = ["IMAGE_SETS", "ImageSetEntry", "image_sets", "read_set"]

IMAGE_SETS = Catalogue(ImageSetEntry, "layerscope.images", package=__name__)


def image_sets() -> dict[str, ImageSetEntry]:
    """Every catalogued image set by name.

    >>> sorted(image_sets())
    ['digits', 'fashion-mnist']
    """
    return IMAGE_SETS.all()


def read_set(name: str, split: str | None, offline: bool) -> ListedImages:
    """The images of a catalogued set; the first split where none is named."""
    entry = IMAGE_SETS.get(name)
    chosen = split or entry.splits[0]
    if chosen not in entry.splits:
        raise DataError(f"{name} has no split {chosen!r}. It has: {', '.join(entry.splits)}.")
    images, labels = entry.read(chosen, entry.fetch(offline=offline))
    facts = {"split": chosen, "license": entry.license, "citation": entry.citation, "version": entry.version}
    names = [f"{name} {chosen} {i}" for i in range(len(images))]
    return ListedImages("catalogue", name, name, list(images), names, labels, entry.classes, facts)
