"""The kinds of items that can be asked for by name, and how each is opened.

Another package adds a kind through an entry point:

    [project.entry-points."layerscope.items"]
    series = "my_package.series:SERIES"  # an ItemKind
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from layerscope.core.options import DataOptions
from layerscope.core.plugins import Registry
from layerscope.data.augment import AUGMENTERS
from layerscope.data.corpus import load_corpus
from layerscope.data.items import Items, is_items
from layerscope.data.labeled import LabeledItems
from layerscope.errors import DataError, LayerscopeError, UnknownNameError


@dataclass(frozen=True)
class ItemKind:
    """One kind of items.

    `open(data, **options)` reads what a user names; `options` are those of `DataOptions`
    that it takes. `settings` has the values that each setting for reading such items may have, the
    default first. `refused` has the settings that make no sense for them, each with what to say.
    `augmenters` make their views, the default one first. `open_labeled(data, test)` gives
    the labeled items that a probe is trained on. `loader` is the function to call instead.
    """

    name: str
    open: Callable[..., Items]
    options: tuple[str, ...]
    augmenters: tuple[str, ...] = ("builtin",)
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loader: str = "what reads them"
    open_labeled: Callable[[Any, Any], LabeledItems] | None = None

    @property
    def defaults(self) -> dict[str, str]:
        """The default value of each setting."""
        return {name: values[0] for name, values in self.settings.items()}

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
        chosen = {name: str(given.get(name) or usual) for name, usual in self.defaults.items()}
        for name, value in chosen.items():
            if value not in self.settings[name]:
                raise UnknownNameError(name, value, self.settings[name])
        return {**given, **chosen}


item_kinds: Registry[ItemKind] = Registry(
    "kind of items",
    "layerscope.items",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, ItemKind),
    hint="Items of another kind are given as an object.",
)
item_kinds.add(
    ItemKind(
        "texts", load_corpus, ("column", "limit", "text_filter"), AUGMENTERS, loader="load_corpus"
    )
)


def setting_names() -> set[str]:
    """The settings for reading items of any kind."""
    return {name for kind in item_kinds.all().values() for name in kind.settings}


def get_kind(name: str) -> ItemKind:
    """The kind of that name. One that is not registered has no settings, and its items are given as
    an object."""
    return item_kinds.get(name) if name in item_kinds else ItemKind(name, _not_by_name, ())


def _not_by_name(data: Any, **options: Any) -> Items:
    raise DataError(f"{data!r} cannot be opened by name. Give the items as an object.")


def open_items(data: Any, kind: str, options: DataOptions | None = None) -> Items:
    """The items of a run: opened from what the user names, or those that were given as an
    object."""
    given = (options or DataOptions()).given()
    known = get_kind(kind)
    for name in given:
        if name not in known.options and kind in item_kinds:
            owner = "texts" if name == "text_filter" else "data that have several splits"
            raise DataError(f"{name} is for {owner}; leave it out for {kind}.")
        if is_items(data):
            raise DataError(
                f"{name} goes with {kind} that are yet to be read: pass it to {known.loader} instead."
            )
    return data if is_items(data) else known.open(data, **given)
