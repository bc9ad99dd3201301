"""Items: what a run is about. Texts, or anything else that a model reads as tokens.

`Items` says what every kind offers. `LoadedModel.open_items` turns items into a model's input.
Another package adds a kind that is opened by name through an entry point:

    [project.entry-points."layerscope.items"]
    series = "my_package.series:SERIES"  # an ItemKind
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from layerscope.core.options import DataOptions
from layerscope.core.plugins import Registry
from layerscope.errors import DataError, LayerscopeError, UnknownNameError

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Shown:
    """The view of items on a map: their texts or names, columns, and a sheet of small pictures."""

    texts: list[str] | None = None
    columns: dict[str, list[Any]] = field(default_factory=dict)
    pictures: bytes | None = None


class Items(Protocol):
    """Items of one kind. No result depends on their order.

    Subclass it to inherit `source`, `dropped`, `warnings` and `describe`.
    """

    @property
    def name(self) -> str:
        """The name of the items."""

    @property
    def source(self) -> dict[str, Any]:
        """Facts about where the items come from, which fit into JSON."""
        return {}

    @property
    def dropped(self) -> dict[str, int]:
        """The numbers of items that were read and left out, by reason."""
        return {}

    @property
    def kind(self) -> str:
        """The kind of the items, in the plural: `texts`, …"""

    @property
    def fingerprint(self) -> str:
        """A hash of the items, whatever their order."""

    @property
    def keys(self) -> np.ndarray:
        """A number (uint64) for each item, made from its content. It stands for the item wherever
        order must not matter."""

    def __len__(self) -> int:
        """Return the number of items."""

    def warnings(self) -> list[str]:
        """Return what a reader of the results must know about the items."""
        return duplicate_warnings(self)

    def describe(self, numbers: np.ndarray) -> Shown:
        """Return what a map shows of the items with these numbers."""
        return Shown()


@dataclass(frozen=True)
class LabeledItems:
    """Items with class numbers, which probes are trained on.

    `parts` holds the positions of the splits that the data come with; others are drawn later.
    """

    kind: str
    name: str
    items: Items | Any  # None where prepared inputs are read instead
    labels: np.ndarray
    classes: tuple[str, ...]
    fingerprint: str
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        filled = {part: positions for part, positions in self.parts.items() if len(positions)}
        object.__setattr__(self, "parts", filled)

    def __len__(self) -> int:
        return len(self.labels)


def is_items(data: Any) -> bool:
    """Return whether data are items already, not the name of some.

    >>> is_items(["a text"])
    False
    """
    return isinstance(getattr(data, "kind", None), str) and hasattr(data, "fingerprint")


def content_key(content: bytes | str) -> int:
    """Return a number that stands for a text, or for the bytes of an item, wherever order must not
    matter."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def duplicate_warnings(items: Items) -> list[str]:
    """Return a warning about items that occur more than once."""
    count = items.source.get("duplicates")
    if not count:
        return []
    return [
        f"{count} {items.kind} are duplicates: they count as prompts of their own, and as "
        "negatives of each other in InfoNCE."
    ]


def _not_by_name(data: Any, **options: Any) -> Items:
    raise DataError(f"{data!r} cannot be opened by name. Give the items as an object.")


@dataclass(frozen=True)
class ItemKind:
    """One kind of items that can be opened by name.

    `open(data, **options)` reads what a user names; `options` are those of `DataOptions` that it
    takes. `settings` has the valid values of each setting for reading such items, the default
    first. `refused` has the settings that make no sense for them, each with an error message.
    `open_labeled(data, test)` returns the labeled items that a probe is trained on. `loader` is the
    function that a user can call instead.
    """

    name: str
    open: Callable[..., Items] = _not_by_name
    options: tuple[str, ...] = ()
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    loader: str = "the function that reads them"
    open_labeled: Callable[[Any, Any], LabeledItems] | None = None

    @property
    def defaults(self) -> dict[str, str]:
        """The default value of each setting."""
        return {name: values[0] for name, values in self.settings.items()}

    def reading_settings(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings with this kind's defaults. A refused or invalid setting is an error."""
        for name, message in self.refused.items():
            if values.get(name) is not None:
                raise LayerscopeError(message)
        chosen = {name: str(values.get(name) or usual) for name, usual in self.defaults.items()}
        for name, value in chosen.items():
            if value not in self.settings[name]:
                raise UnknownNameError(name, value, self.settings[name])
        return {**values, **chosen}


item_kinds: Registry[ItemKind] = Registry(
    "kind of items",
    "layerscope.items",
    name=lambda kind: kind.name,
    check=lambda thing: isinstance(thing, ItemKind),
    hint="Items of another kind are given as an object.",
)


def setting_names() -> set[str]:
    """Return the names of the settings for reading items of any kind."""
    return {name for kind in item_kinds.all().values() for name in kind.settings}


def get_kind(name: str) -> ItemKind:
    """Return a kind by its name. A kind that is not registered has no settings, and its items are
    given as an object."""
    return item_kinds.get(name) if name in item_kinds else ItemKind(name)


def open_items(data: Any, kind: str, options: DataOptions | None = None) -> Items:
    """Return the items of a run: those given as an object, or those that the user names."""
    settings = (options or DataOptions()).given()
    item_kind = get_kind(kind)
    for name in settings:
        if name not in item_kind.options and kind in item_kinds:
            raise DataError(f"{name} does not go with {kind}: leave it out.")
        if is_items(data):
            raise DataError(
                f"{name} goes with {kind} that are yet to be read: pass it to {item_kind.loader} "
                "instead."
            )
    items: Items = data if is_items(data) else item_kind.open(data, **settings)
    return items
