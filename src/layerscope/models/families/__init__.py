"""Model families: where each family of architectures keeps its blocks, norms and branches.

The `FAMILIES` of every file in this folder, and what other packages add: an entry point of the
group `layerscope.families` names a `Family`, or a module with `FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from layerscope.core.plugins import Registry
from layerscope.models.families.base import Family, GenericFamily, pre_norm_taps

__all__ = ["FAMILIES", "Family", "GenericFamily", "declared_family", "family_for", "pre_norm_taps"]

GENERIC = "generic"
FAMILIES: Registry[Family] = Registry(
    "model family",
    "layerscope.families",
    name=lambda family: family.name,
    check=lambda thing: isinstance(thing, Family),
    package=__name__,
    find=lambda module: list(getattr(module, "FAMILIES", ())),
    hint='family="generic" looks for the blocks itself.',
)


def declared_family(config: Mapping[str, Any]) -> Family:
    """Return the family that declares a config.json; if none does, one that fits such models."""
    families = FAMILIES.all().values()
    declaring = next((family for family in families if family.declares(config)), None)
    return declaring or _fitting(config.get("model_type"))


def family_for(module: nn.Module, name: str | None = None) -> Family:
    """Return the family called `name`, or the one that declares the module's model type.

    If none does, or with `name` generic, it is one that looks for the parts itself.
    """
    model_type = getattr(getattr(module, "config", None), "model_type", None)
    if name not in (None, GENERIC):
        return FAMILIES.get(name)
    families = () if name == GENERIC else FAMILIES.all().values()
    declaring = next((family for family in families if model_type in family.model_types), None)
    return declaring or _fitting(model_type, module)


def _fitting(model_type: str | None, module: nn.Module | None = None) -> Family:
    families = FAMILIES.all()
    fitting = (family for family in families.values() if family.fits(model_type, module))
    return next(fitting, families[GENERIC])
