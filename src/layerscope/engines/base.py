"""Engines and their work, the engine of this process, and the recipe of a worker's model."""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from layerscope.core.identity import ModelIdentity
from layerscope.errors import LayerscopeError, ModelError
from layerscope.models import LoadedModel, open_model
from layerscope.models.load import at_commit
from layerscope.models.settings import pick_device

__all__ = [
    "ROOM",
    "Advance",
    "Engine",
    "LocalEngine",
    "ModelRecipe",
    "Work",
    "driver_options",
    "ignore_progress",
    "make_recipe",
]

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[int], None]
Results = Iterator[tuple[int, Result]]
"""Pairs of an item's number and its result, as they are done."""


def ignore_progress(units: int) -> None:
    """Ignore progress."""


class Work(ABC, Generic[Item, Result]):
    """One kind of work. Each worker gets it once, opens it, and runs it for its items.

    It must be picklable before `open`. An item must give the same result on every worker.
    """

    memory: int = 0
    """Bytes that one worker needs, if known; they limit the default number of workers."""
    device: str | None = None
    """`cuda` or `cpu`: where a work with a model computes, once it is open."""

    def open(self) -> None:
        """Load what all items need."""
        return

    @abstractmethod
    def run(self, item: Item, advance: Advance) -> Result:
        """Return the result of one item. `advance(n)` reports n more units as done."""

    def close(self) -> None:
        """Release what `open` took."""
        return

    def name(self, item: Item) -> str:
        """Return an item's name for messages."""
        return str(item)

    def give_up(self, item: Item, reason: str) -> Result:
        """Return the result of an item that failed too often, or stop the run with an error."""
        raise LayerscopeError(
            f"{self.name(item)} {reason}. What was finished is kept: run the same command again "
            "to resume."
        )


class Engine(AbstractContextManager["Engine"]):
    """A place where work is done. Use it as a context, or `close` it."""

    name: str
    remote: bool = False
    """True where workers are other processes, to which models and texts are sent."""

    @property
    def device_type(self) -> str | None:
        """`cuda` or `cpu` where workers choose their device themselves; else None."""
        return None

    @abstractmethod
    def run(
        self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = ignore_progress
    ) -> Results[Result]:
        """Yield the number and the result of each item once, in the order in which they are
        done."""

    def close(self) -> None:
        """End workers and connections."""
        return

    def __exit__(self, *exc: object) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """Return a manifest's facts on where a run was computed."""
        return {"name": self.name}


class LocalEngine(Engine):
    """Does all items in this process, one after the other."""

    name = "local"

    def run(
        self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = ignore_progress
    ) -> Results[Result]:
        """Yield the number and the result of each item, in order."""
        if not items:
            return
        try:
            work.open()
            for i, item in enumerate(items):
                yield i, work.run(item, advance)
        finally:
            work.close()


ROOM = 1.5 * 2**30
"""Bytes that a worker needs beside the weights: libraries, states of a batch, a shard."""


@dataclass(frozen=True)
class ModelRecipe:
    """A model to be loaded by a worker. `spec` is its name or folder, or the model itself as
    bytes."""

    spec: str | Path | bytes
    options: dict[str, Any]
    identity: dict[str, Any]

    @property
    def memory(self) -> int:
        """Return the bytes of one copy while it is loaded, about."""
        size = {"float16": 2, "bfloat16": 2, "float64": 8}.get(str(self.identity.get("dtype")), 4)
        return int(1.2 * size * (self.identity.get("parameters") or 0) + ROOM)

    def open(self) -> LoadedModel:
        """Load the model in a worker; raise where it is not the model that the driver has."""
        if isinstance(self.spec, bytes):
            model: LoadedModel = pickle.loads(self.spec)  # noqa: S301 - made by this run's driver
            model.module.to(pick_device(self.options.get("device")))
            return model
        model = open_model(self.spec, None, self.options)
        difference = ModelIdentity.of(model.identity).difference(ModelIdentity.of(self.identity))
        if difference:
            raise ModelError(
                f"{model.name} is not the same model here as where the run was started: they "
                f"differ in {difference}. Put the same files under the same path on every machine."
            )
        return model


def make_recipe(model: Any, loaded: LoadedModel, options: dict[str, Any]) -> ModelRecipe:
    """Return the recipe of a model from what the user gave and from the loaded model."""
    if str(options.get("device") or "").startswith("cuda:"):
        raise LayerscopeError(
            f"device {options['device']!r}: a worker sees only the GPUs that it was given. Use "
            "cuda, or leave it out."
        )
    if not isinstance(model, str | Path):
        return ModelRecipe(_pickled(loaded), options, loaded.identity)
    path = Path(model).expanduser()
    spec = path.resolve() if path.exists() else at_commit(model, loaded)
    options = dict(options)
    if spec != model:
        options.pop("revision", None)  # part of the name now
    if options.get("adapters"):
        facts = loaded.identity["adapters"]
        options["adapters"] = [
            f"{adapter['name']}@{adapter['revision']}" if adapter.get("revision") else source
            for source, adapter in zip(options["adapters"], facts, strict=True)
        ]
    return ModelRecipe(spec, options, loaded.identity)


def driver_options(model: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options by which the driver loads a model that workers run: on its CPU, for the
    tokenizer."""
    if not isinstance(model, str | Path):
        return options
    cpu_options = {name: value for name, value in options.items() if name != "device_map"}
    return {**cpu_options, "device": "cpu"}


def _pickled(model: LoadedModel) -> bytes:
    """Return a model that exists only in this process as bytes."""
    from ray import cloudpickle

    try:
        on_cpu = model if model.device.type == "cpu" else copy.deepcopy(model)
        on_cpu.module.to("cpu")
        return bytes(cloudpickle.dumps(on_cpu))
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise LayerscopeError(
            f"{model.name} was given as an object that cannot be sent to workers ({error}). Save "
            "it with save_pretrained and give the folder."
        ) from error
