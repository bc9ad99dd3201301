"""Where work is done: in this process, or on the machines of a cluster. One file per engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from layerscope.core.options import EngineOptions
from layerscope.engines.base import (
    Advance,
    Engine,
    LocalEngine,
    ModelRecipe,
    Work,
    driver_options,
    make_recipe,
)
from layerscope.engines.ray import RayEngine
from layerscope.errors import InvalidValueError, UnknownNameError

__all__ = [
    "ENGINES",
    "Advance",
    "Engine",
    "LocalEngine",
    "ModelRecipe",
    "RayEngine",
    "Work",
    "driver_options",
    "engine_in_use",
    "make_recipe",
    "open_engine",
]

ENGINES: dict[str, type[Engine]] = {"local": LocalEngine, "ray": RayEngine}


def open_engine(options: EngineOptions) -> Engine:
    """An engine from its name and settings; one that was given as an object is returned as it is.

    >>> open_engine(EngineOptions()).name
    'local'
    """
    engine = options.engine or "local"
    given: dict[str, Any] = {
        name: getattr(options, name) for name in ("address", "workers", "gpus_per_worker")
    }
    named = [name for name, value in given.items() if value is not None]
    if isinstance(engine, Engine):
        if named:
            raise InvalidValueError(
                f"{named[0]} cannot be combined with an engine object; set it when creating the engine."
            )
        return engine
    if engine not in ENGINES:
        raise UnknownNameError("engine", str(engine), ENGINES)
    if ENGINES[engine].remote:
        return ENGINES[engine](**given)
    if named:
        raise InvalidValueError(
            f"{named[0]}= is for work on a cluster: add engine='ray', or leave it out."
        )
    return ENGINES[engine]()


@contextmanager
def engine_in_use(options: EngineOptions) -> Iterator[Engine]:
    """An engine for the length of a block. It is closed after it, unless it was given as an object:
    its owner may go on."""
    opened = open_engine(options)
    try:
        yield opened
    finally:
        if opened is not options.engine:
            opened.close()
