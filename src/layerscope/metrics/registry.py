"""All metrics by name. A metric is one file in this folder that decorates its class with `@register`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar

from layerscope.errors import UnknownNameError
from layerscope.metrics.base import Metric

_METRICS: dict[str, type[Metric[Any]]] = {}
M = TypeVar("M", bound=type[Metric[Any]])


def register(metric: M) -> M:
    """Class decorator: make a metric known under its name."""
    _METRICS[metric.info.name] = metric
    return metric


@cache
def _discover() -> None:
    package = importlib.import_module("layerscope.metrics")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"layerscope.metrics.{module.name}")


def metrics() -> dict[str, type[Metric[Any]]]:
    """Every known metric by name: the paper's first, then the others."""
    _discover()
    return dict(sorted(_METRICS.items(), key=lambda item: (not item[1].info.core, item[0])))


def get_metric(name: str) -> type[Metric[Any]]:
    """The class of a metric; an error that suggests the nearest name if there is none."""
    known = metrics()
    if name not in known:
        raise UnknownNameError("metric", name, known)
    return known[name]


def expand_names(names: Iterable[str] | None) -> list[str]:
    """Metric names from a user's list; `all` (or None) is every metric, `paper` the paper's own."""
    known = metrics()
    wanted: list[str] = []
    for name in names if names is not None else ["all"]:
        if name == "all":
            wanted += known
        elif name == "paper":
            wanted += [n for n, m in known.items() if m.info.core]
        else:
            get_metric(name)
            wanted.append(name)
    return list(dict.fromkeys(wanted))
