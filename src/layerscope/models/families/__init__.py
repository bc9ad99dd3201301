"""Model families: one file each, found by looking into this folder, so that adding a family is adding a file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from torch import nn

from layerscope.errors import UnknownNameError
from layerscope.models.families.base import Family

__all__ = ["Family", "families", "family_for"]


@cache
def families() -> dict[str, Family]:
    """Every family by name: the `FAMILY` of each module in this folder."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        family = getattr(importlib.import_module(f"{__name__}.{info.name}"), "FAMILY", None)
        if isinstance(family, Family):
            found[family.name] = family
    return found


def family_for(module: nn.Module, name: str | None = None) -> Family:
    """The family called `name`, or the one that declares the module's model type, or `generic`."""
    known = families()
    if name is not None:
        if name not in known:
            raise UnknownNameError("model family", name, known, 'family="generic" looks for the blocks itself.')
        return known[name]
    model_type = getattr(getattr(module, "config", None), "model_type", None)
    return next((family for family in known.values() if model_type in family.model_types), known["generic"])
