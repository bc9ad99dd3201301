"""What an engine is: something that does one kind of work for many items, here or on many machines.
The local one is here.

A `ModelRecipe` says how each worker loads the model for itself.
"""

from __future__ import annotations

import copy
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from layerscope.core.identity import ModelIdentity
from layerscope.errors import LayerscopeError, ModelError
from layerscope.models import LoadedModel, open_model
from layerscope.models.load import at_commit
from layerscope.models.settings import pick_device

__all__ = ["ROOM", "ignore_progress"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[int], None]
Results = Iterator[tuple[int, Result]]
"""(number of an item, its result), as they are done."""


def ignore_progress(units: int) -> None:
    """Ignore progress."""


class Work(ABC, Generic[Item, Result]):
    """One kind of work. It is sent to every worker once, opened there (which may load a model), and
    run for each item.

    What it holds before `open` must be picklable. An item must give the same result on every
    worker: if a worker is lost, its items are run on another.
    """

    under_way: int = 1  # items that a worker has at a time; 2 where `prepare` does something: one runs while the next is prepared
    memory: int = (
        0  # bytes that one worker needs, if known: limits how many workers are started by default
    )
    device: str | None = (
        None  # the kind of device that it computes on (cuda, cpu), once it is open, where it has a model
    )

    def open(self) -> Any:
        """Get ready, once per worker. What the first worker returns is passed to every `run` as
        `common`."""
        return None

    def prepare(self, item: Item) -> Any:
        """What can be done for an item while the one before it still runs."""
        return None

    @abstractmethod
    def run(self, item: Item, prepared: Any, advance: Advance, common: Any) -> Result:
        """The result of one item; `advance(n)` says that n more units are done."""

    def close(self) -> None:
        """Release what `open` took."""

    def name(self, item: Item) -> str:
        """What an item is called in a message."""
        return str(item)

    def give_up(self, item: Item, reason: str) -> Result:
        """The result of an item that failed too often. By default the whole run stops with an
        error."""
        raise LayerscopeError(
            f"{self.name(item)} {reason}. What was finished is kept: run the same command again to resume."
        )


class Engine(AbstractContextManager["Engine"]):
    """Where work is done. Use it as a context, or `close` it: it may have workers, or a connection
    to a cluster."""

    name: str
    remote: bool = (
        False  # whether workers are other processes, to which models and texts must be sent
    )

    @property
    def device_type(self) -> str | None:
        """`cuda` or `cpu` where workers choose their device themselves; None where it is the
        model's."""
        return None

    @abstractmethod
    def run(
        self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = ignore_progress
    ) -> Results[Result]:
        """(number of an item, its result) for every item, each once, in the order in which they are
        done."""

    def close(self) -> None:
        """End workers and connections."""

    def __exit__(self, *exc: object) -> None:
        self.close()

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says about where it was computed."""
        return {"name": self.name}


class LocalEngine(Engine):
    """Does everything in this process, one item after the other."""

    name = "local"

    def run(
        self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = ignore_progress
    ) -> Results[Result]:
        """(number of an item, its result), in order."""
        if not items:
            return
        try:
            common = work.open()
            for i, item in enumerate(items):
                yield i, work.run(item, work.prepare(item), advance, common)
        finally:
            work.close()


ROOM = 1.5 * 2**30  # beside the weights: libraries, states of a batch, a shard


@dataclass
class ModelRecipe:
    """How a worker gets the model that the driver has. `spec` is what the user gave, or the model
    itself as bytes."""

    spec: str | Path | bytes
    options: dict[str, Any]
    identity: dict[str, Any]

    @property
    def memory(self) -> int:
        """About what one copy takes, while it is loaded at least."""
        size = {"float16": 2, "bfloat16": 2, "float64": 8}.get(str(self.identity.get("dtype")), 4)
        return int(1.2 * size * (self.identity.get("parameters") or 0) + ROOM)

    def open(self) -> LoadedModel:
        """The model, in a worker; an error where it is not the one the driver has."""
        if isinstance(self.spec, bytes):
            model: LoadedModel = pickle.loads(self.spec)  # noqa: S301 - made by the driver of this very run
            model.module.to(pick_device(self.options.get("device")))
            return model
        try:
            model = open_model(self.spec, None, self.options)
        except ModelError as error:
            if isinstance(self.spec, Path):
                raise ModelError(
                    f"{error} A model's folder must lie under the same path on every machine."
                ) from error
            raise
        differs = ModelIdentity.of(model.identity).difference(ModelIdentity.of(self.identity))
        if differs:
            raise ModelError(
                f"{model.name} is not the same model here as where the run was started; they differ in {differs}. "
                "Put the same files on every machine."
            )
        return model


def make_recipe(given: Any, loaded: LoadedModel, options: dict[str, Any]) -> ModelRecipe:
    """What workers need to get the model that the user gave."""
    if str(options.get("device") or "").startswith("cuda:"):
        raise LayerscopeError(
            f"device {options['device']!r}: a worker sees only the GPUs that it was given. Use cuda, or leave it out."
        )
    if isinstance(given, (str, Path)):
        path = Path(given).expanduser()
        spec = path.resolve() if path.exists() else at_commit(given, loaded)
        if spec != given:
            options = {
                name: value for name, value in options.items() if name != "revision"
            }  # part of the name now
        if options.get("adapters"):
            options = {
                **options,
                "adapters": _pinned_adapters(options["adapters"], loaded.identity["adapters"]),
            }
        return ModelRecipe(spec, options, loaded.identity)
    return ModelRecipe(_pickled(loaded), options, loaded.identity)


def _pinned_adapters(
    given: Sequence[str | Path], facts: Sequence[Mapping[str, Any]]
) -> list[str | Path]:
    """Adapters as workers shall read them: those of the hub by their commits."""
    return [
        f"{one['name']}@{one['revision']}" if one.get("revision") else spec
        for spec, one in zip(given, facts, strict=True)
    ]


def driver_options(given: Any, options: dict[str, Any]) -> dict[str, Any]:
    """How the driver itself loads the model, which only tokenizes and plans with it: on its CPU,
    whatever workers do."""
    if not isinstance(given, (str, Path)):
        return options
    return {**{k: v for k, v in options.items() if k != "device_map"}, "device": "cpu"}


def _pickled(model: LoadedModel) -> bytes:
    """A model that exists only here, as bytes, on the CPU."""
    from ray import cloudpickle

    if len({p.device for p in model.module.parameters()}) > 1:
        raise LayerscopeError(
            f"{model.name} is spread over devices and cannot be sent to workers. Give its name or folder instead."
        )
    try:
        whole = model if model.device.type == "cpu" else copy.deepcopy(model)
        whole.module.to("cpu")
        return bytes(cloudpickle.dumps(whole))
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        raise LayerscopeError(
            f"{model.name} was given as an object that cannot be sent to workers ({error}). Save it with save_pretrained and "
            "give the folder."
        ) from error
