"""The paper's tables and figures, recomputed from the raw results: a file each, or one for those
that share a method."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from layerscope.errors import UnknownNameError
from layerscope_paper.atlas.queries import CONVENTIONS
from layerscope_paper.atlas.reproduce.base import NO_SCORES, Item, Row

ALL = "all"  # every item

__all__ = ["ALL", "Item", "Row", "find_items", "items", "reproduce"]


@lru_cache(maxsize=1)
def items() -> dict[str, Item]:
    """Return every table and figure that can be recomputed, by name."""
    modules = [
        importlib.import_module(f"{__name__}.{info.name}")
        for info in pkgutil.iter_modules(__path__)
    ]
    found_items = [item for module in modules for item in getattr(module, "ITEMS", ())]
    return {item.name: item for item in sorted(found_items, key=_sort_key)}


def _sort_key(item: Item) -> tuple[int, int, str]:
    """Sort tables first, then figures by number, then the talk."""
    prefixes = ("table", "fig")
    kind = next((i for i, prefix in enumerate(prefixes) if item.name.startswith(prefix)), 2)
    return kind, int("".join(filter(str.isdigit, item.name)) or 0), item.name


def find_items(name: str) -> list[Item]:
    """Return the table or figure of that name, or every one for `all`."""
    if name == ALL:
        return list(items().values())
    if name not in items():
        raise UnknownNameError("table or figure", name, [*items(), ALL])
    return [items()[name]]


def reproduce(name: str, convention: str = "both") -> list[Row]:
    """Return the rows of one table or figure, or of `all`, under `authors`, `english` or `both`
    conventions.

    >>> row = reproduce("table2", "authors")[0]
    >>> row.model, row.column, row.printed, round(row.ours, 2), row.tasks, row.verdict
    ('Pythia-410M', 'best', 52.0, 51.96, 32, 'supported')
    """
    if convention != "both" and convention not in CONVENTIONS:
        raise UnknownNameError("convention", convention, [*CONVENTIONS, "both"])
    conventions = list(CONVENTIONS) if convention == "both" else [convention]
    rows = []
    for item in find_items(name):
        for item_convention in conventions if item.uses_scores else [NO_SCORES]:
            rows += item.rows(item_convention)
    return rows
