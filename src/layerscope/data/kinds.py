"""The kinds of items that can be asked for by name, and how each is opened.

Another package adds a kind through an entry point:

    [project.entry-points."layerscope.items"]
    series = "my_package.series:SERIES"  # an ItemKind
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from layerscope.core.options import DataOptions
from layerscope.core.plugins import Registry
from layerscope.data.augment import AUGMENTERS
from layerscope.data.corpus import load_corpus
from layerscope.data.images.load import load_images
from layerscope.data.items import Items, is_items
from layerscope.data.sounds import load_sounds
from layerscope.errors import DataError, LayerscopeError


@dataclass(frozen=True)
class ItemKind:
    """One kind of items.

    `open(data, offline=…, **options)` reads what a user names; `options` are those of `DataOptions`
    that it takes. `settings` are defaults for reading them, `refused` the settings that make no
    sense for them, each with what to say. `augmenters` make their views, the default one first.
    """

    name: str
    open: Callable[..., Items]
    options: tuple[str, ...]
    augmenters: tuple[str, ...] = ("builtin",)
    settings: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)

    def reading_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Settings with this kind's defaults; one that makes no sense for it is an error."""
        for name, why in self.refused.items():
            if given.get(name) is not None:
                raise LayerscopeError(why)
        augmenter = given.get("augmenter")
        if augmenter is not None and augmenter in AUGMENTERS and augmenter not in self.augmenters:
            raise LayerscopeError(
                f"augmenter {augmenter!r} is for texts; views of {self.name} are made by {' or '.join(self.augmenters)}."
            )
        return {
            **given,
            **{name: given.get(name) or value for name, value in self.settings.items()},
        }


item_kinds: Registry[ItemKind] = Registry(
    "kind of items",
    "layerscope.items",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, ItemKind),
    hint="Items of another kind are given as an object.",
)
item_kinds.add(ItemKind("texts", load_corpus, ("column", "limit", "text_filter"), AUGMENTERS))
item_kinds.add(
    ItemKind(
        "images",
        partial(load_images, progress=None),
        ("column", "limit", "split"),
        settings={"tokens": "patches", "image_pooling": "mean"},
        refused={"max_length": "max_length cuts texts; images are not cut. Leave it out."},
    )
)

item_kinds.add(
    ItemKind(
        "sounds",
        load_sounds,
        ("limit",),
        refused={"max_length": "max_length cuts texts; sounds are read whole. Leave it out."},
    )
)


def get_kind(name: str) -> ItemKind:
    """The kind of that name. One that is not registered has no settings, and its items are given as
    an object."""
    return item_kinds.get(name) if name in item_kinds else ItemKind(name, _not_by_name, ())


def _not_by_name(data: Any, **options: Any) -> Items:
    raise DataError(f"{data!r} cannot be opened by name. Give the items as an object.")


def open_items(
    data: Any, kind: str, options: DataOptions | None = None, offline: bool = False
) -> Items:
    """The items of a run: opened from what the user names, or those that were given as an
    object."""
    given = (options or DataOptions()).given()
    known = get_kind(kind)
    loader = {"texts": "load_corpus", "images": "load_images", "sounds": "load_sounds"}.get(
        kind, "what reads them"
    )
    for name in given:
        if name not in known.options and kind in item_kinds:
            owner = "texts" if name == "text_filter" else "data that have several splits"
            raise DataError(f"{name} is for {owner}; leave it out for {kind}.")
        if is_items(data):
            raise DataError(
                f"{name} goes with {kind} that are yet to be read: pass it to {loader} instead."
            )
    return data if is_items(data) else known.open(data, offline=offline, **given)
