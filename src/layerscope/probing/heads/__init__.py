"""Trained probes, one file each."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from layerscope.probing.heads.base import Head, Parameters

__all__ = ["Head", "Parameters", "heads"]


@cache
def heads() -> dict[str, type[Head]]:
    """Every trained probe by name."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    return {module.HEAD.name: module.HEAD for module in modules if hasattr(module, "HEAD")}
