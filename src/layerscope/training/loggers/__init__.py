"""Where the numbers go: one file per place, found by name, so that adding a place is adding a file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerscope.errors import UnknownNameError
from layerscope.training.loggers.base import Logger

__all__ = ["Logger", "open_loggers"]


def open_loggers(wanted: Any, out: Path, conventions: dict[str, Any]) -> list[Logger]:
    """The loggers asked for, by name or as they are."""
    each: Sequence[Any] = [wanted] if isinstance(wanted, str) or hasattr(wanted, "write") else list(wanted)
    opened: list[Logger] = []
    for item in each:
        if not isinstance(item, str):
            opened.append(item)
            continue
        names = {info.name.removesuffix("_log"): info.name for info in pkgutil.iter_modules(__path__) if info.name != "base"}
        if item not in names:
            raise UnknownNameError("log", item, names)
        opened.append(importlib.import_module(f"{__name__}.{names[item]}").open_log(out, conventions))
    return opened
