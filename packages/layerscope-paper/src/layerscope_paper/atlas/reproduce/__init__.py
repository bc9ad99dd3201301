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

__all__ = ["ALL", "Item", "Row", "find_item", "items", "reproduce"]


@lru_cache(maxsize=1)
def items() -> dict[str, Item]:
    """Every table and figure that can be recomputed, by name."""
    known = {}
    for module in pkgutil.iter_modules(__path__):
        home = importlib.import_module(f"{__name__}.{module.name}")
        own = (getattr(home, "ITEM", None), *getattr(home, "ITEMS", ()))
        known.update({item.name: item for item in own if isinstance(item, Item)})
    return dict(sorted(known.items(), key=lambda pair: _place(pair[0])))


def _place(name: str) -> tuple[int, int, str]:
    """Tables, then figures by number, then the rest."""
    kind = next((i for i, prefix in enumerate(("table", "fig")) if name.startswith(prefix)), 2)
    return kind, int("".join(filter(str.isdigit, name)) or 0), name


def find_item(name: str) -> Item:
    """The table or figure of that name."""
    if name not in items():
        raise UnknownNameError("table or figure", name, [*items(), ALL])
    return items()[name]


def reproduce(name: str, convention: str = "both") -> list[Row]:
    """The rows of one table or figure, or of `all`, under `authors`, `english` or `both`
    conventions.

    >>> row = reproduce("table2", "authors")[0]
    >>> row.model, row.column, row.printed, round(row.ours, 2), row.tasks, row.verdict
    ('Pythia-410M', 'best', 52.0, 51.96, 32, 'supported')
    """
    chosen = list(items().values()) if name == ALL else [find_item(name)]
    if convention != "both" and convention not in CONVENTIONS:
        raise UnknownNameError("convention", convention, [*CONVENTIONS, "both"])
    wanted = list(CONVENTIONS) if convention == "both" else [convention]
    return [
        row
        for item in chosen
        for each in (wanted if item.uses_scores else [NO_SCORES])
        for row in item.rows(each)
    ]
