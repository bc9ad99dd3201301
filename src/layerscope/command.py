"""The start and the end that all commands that read models have in common.

A command checks its options, opens the engine, and computes or reads back a run:

    command = Command("profile", options, engine=engine, progress=progress)
    with command:
        model = command.load(model, tokenizer)
        return run_in(folder, Profile, config, lambda session: …)
"""

from __future__ import annotations

import inspect
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self, TypeVar

from layerscope.core.options import EngineOptions, ModelOptions
from layerscope.engines import (
    Engine,
    ModelRecipe,
    driver_options,
    engine_in_use,
    make_recipe,
    open_engine,
)
from layerscope.errors import UnknownNameError
from layerscope.models import LoadedModel, open_model
from layerscope.progress import Progress, progress_bar
from layerscope.store import RunFolder, StoredRun
from layerscope.store.folder import Session
from layerscope.version import VERSION

__all__ = ["Command", "environment", "make_manifest", "run_in"]

R = TypeVar("R", bound=StoredRun)
_PACKAGES = ("torch", "numpy", "transformers", "tokenizers", "pandas")


class Command:
    """One call of a command: how its models are loaded, and where they run.

    Making it checks the options and takes them out of `options`; what is left there is an error
    unless `takes_more`, which names the parameters of the `function` too. Inside `with` the
    `engine` is open within its bound of memory, and `bar` shows progress.
    """

    engine: Engine
    bar: Progress
    recipe: ModelRecipe | None = None
    """How workers load the model; None where this process runs it."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        *,
        engine: Any = "local",
        progress: Any = None,
        takes_more: bool = False,
        function: Callable[..., Any] | None = None,
        show: Callable[..., Any] = progress_bar,
    ) -> None:
        self.loading = ModelOptions.take(options).given()
        options["engine"] = engine
        self.where = EngineOptions.take(options)
        if options and not takes_more:
            parameters = () if function is None else inspect.signature(function).parameters
            valid = {*ModelOptions.names(), *EngineOptions.names(), *parameters} - {"options"}
            raise UnknownNameError(f"option of {name}", next(iter(options)), valid)
        open_engine(self.where)  # connects to nothing yet
        self._progress, self._show = progress, show

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self.engine = opened.enter_context(engine_in_use(self.where))
            self.bar = opened.enter_context(self._show(self._progress))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    def load(self, model: Any, tokenizer: Any = None, here: bool = False) -> LoadedModel:
        """Return the model. Where workers run it, it is on this machine's CPU for its tokenizer
        alone, unless it is needed `here`."""
        away = self.engine.remote and not here
        loaded = open_model(
            model,
            tokenizer,
            driver_options(model, self.loading) if away else self.loading,
        )
        self.recipe = make_recipe(model, loaded, self.loading) if self.engine.remote else None
        return loaded


def run_in(
    folder: RunFolder,
    kind: type[R],
    config: dict[str, Any],
    compute: Callable[[Session], R],
    *,
    overwrite: bool = False,
    **settings: Any,
) -> R:
    """Return a run in its folder: read back what is finished there, resume what was started.

    `settings` go to `RunFolder.session`.
    """
    with folder.session(
        kind.kind, config, overwrite=overwrite, started=now(), **settings
    ) as session:
        if session.finished:
            return kind.load(folder.path)
        run = compute(session)
        run.manifest = session.completed(run.manifest)
        run.save(folder.path)
        folder.finish()
        return run


def make_manifest(kind: str, **facts: Any) -> dict[str, Any]:
    """Return the manifest of a finished run: the facts of every kind, and its own."""
    return {"kind": kind, "status": "complete", "layerscope": VERSION, "finished": now(), **facts}


def environment(**facts: Any) -> dict[str, Any]:
    """Return the machine and the packages, for a manifest."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **facts,
        **{name: _version(name) for name in _PACKAGES},
    }


def now() -> str:
    """Return the time, for a manifest."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@cache  # looking it up on the disk takes a while
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
