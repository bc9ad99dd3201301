"""Model families: where each family of architectures keeps its blocks, norms and branches.

The `FAMILIES` of every file in this folder, and what other packages add: an entry point of the
group `layerscope.families` names a `Family`, or a module with `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from layerscope.core.plugins import Registry
from layerscope.models.architectures import model_type_of
from layerscope.models.families.base import Family

__all__ = ["FAMILIES", "Family", "declared_family", "family_for"]

FAMILIES: Registry[Family] = Registry(
    "model family",
    "layerscope.families",
    name=lambda family: family.name,
    check=lambda thing: isinstance(thing, Family),
    package=__name__,
    find=lambda module: list(getattr(module, "FAMILIES", ())),
    hint='family="generic" looks for the blocks itself.',
)


def declared_family(config: Mapping[str, Any]) -> Family | None:
    """The family that declares the model type of a config.json."""
    model_type = model_type_of(config)
    return next(
        (
            family
            for family in FAMILIES.all().values()
            if model_type in (*family.model_types, *family.containers)
        ),
        None,
    )


def family_for(module: nn.Module, name: str | None = None) -> Family:
    """The family called `name`, or the one that declares the module's model type, or `generic`."""
    if name is not None:
        return FAMILIES.get(name)
    model_type = getattr(getattr(module, "config", None), "model_type", None)
    known = FAMILIES.all()
    return next(
        (family for family in known.values() if model_type in family.model_types), known["generic"]
    )
