"""Engines: work is done in this process, or by the workers of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from layerscope.core.options import EngineOptions
from layerscope.engines.base import (
    Advance,
    Engine,
    LocalEngine,
    ModelRecipe,
    Work,
    driver_options,
    ignore_progress,
    make_recipe,
)
from layerscope.engines.ray import RayEngine
from layerscope.errors import InvalidValueError, UnknownNameError

__all__ = [
    "Advance",
    "Engine",
    "LocalEngine",
    "ModelRecipe",
    "RayEngine",
    "Work",
    "driver_options",
    "engine_in_use",
    "ignore_progress",
    "make_recipe",
    "open_engine",
]


def open_engine(options: EngineOptions) -> Engine:
    """Return the engine that options name. An engine that is an object already is returned as it
    is.

    >>> open_engine(EngineOptions()).name
    'local'
    """
    engine = options.engine or "local"
    if engine == "ray":
        return RayEngine(options.address, options.workers, options.gpus_per_worker)
    for name in ("address", "workers", "gpus_per_worker"):
        if getattr(options, name) is not None:
            raise InvalidValueError(
                f"{name}= is for work on a cluster: add engine='ray', or leave it out. An engine "
                "object has its own."
            )
    if isinstance(engine, Engine):
        return engine
    if engine != "local":
        raise UnknownNameError("engine", str(engine), ["local", "ray"])
    return LocalEngine()


@contextmanager
def engine_in_use(options: EngineOptions) -> Iterator[Engine]:
    """Open an engine for a block. It is closed afterwards, unless it came as an object: its owner
    may go on."""
    engine = open_engine(options)
    try:
        yield engine
    finally:
        if engine is not options.engine:
            engine.close()
