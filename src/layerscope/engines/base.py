"""What an engine is: something that does one kind of work for many items, here or on many machines; and the local one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from layerscope.errors import LayerscopeError

Item = TypeVar("Item")
Result = TypeVar("Result")
Advance = Callable[[int], None]
Results = Iterator[tuple[int, Result]]
"""(number of an item, its result), as they are done."""


def nothing(units: int) -> None:
    """Ignore progress."""


class Work(ABC, Generic[Item, Result]):
    """One kind of work. It is sent to every worker once, opened there (which may load a model), and run for each item.

    What it holds before `open` must be picklable. An item must give the same result on every worker: if a worker is lost, its
    items are run on another.
    """

    under_way: int = 1  # items that a worker has at a time; 2 where `prepare` does something: one runs while the next is prepared
    memory: int = 0  # bytes that one worker needs, if known: limits how many workers are started by default

    def open(self) -> Any:
        """Get ready, once per worker. What the first worker returns is passed to every `run` as `common`."""
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
        """The result of an item that failed too often. By default the whole run stops with an error."""
        raise LayerscopeError(f"{self.name(item)} {reason}. What was finished is kept: run the same command again to resume.")


class MapWork(Work[Item, Result]):
    """A plain function as work."""

    def __init__(self, function: Callable[[Item], Result]) -> None:
        self.function = function

    def run(self, item: Item, prepared: Any, advance: Advance, common: Any) -> Result:
        """The function's result."""
        result = self.function(item)
        advance(1)
        return result


class Engine(ABC):
    """Where work is done. Use it as a context, or `close` it: it may have workers, or a connection to a cluster."""

    name: str
    remote: bool = False  # whether workers are other processes, to which models and texts must be sent

    @property
    def device_type(self) -> str | None:
        """`cuda` or `cpu` where workers choose their device themselves; None where it is the model's."""
        return None

    @abstractmethod
    def run(self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = nothing) -> Results[Result]:
        """(number of an item, its result) for every item, each once, in the order in which they are done."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item], advance: Advance = nothing) -> list[Result]:
        """The results of a picklable function for many items, in their order.

        >>> from layerscope.engines import LocalEngine
        >>> LocalEngine().map(len, ["one", "three"])
        [3, 5]
        """
        found = dict(self.run(MapWork(function), items, advance))
        return [found[i] for i in range(len(items))]

    def facts(self) -> dict[str, Any]:
        """What a run's manifest says about where it was computed."""
        return {"name": self.name}

    def close(self) -> None:  # noqa: B027 - many have nothing to release
        """Release workers and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class LocalEngine(Engine):
    """Does everything in this process, one item after the other."""

    name = "local"

    def run(self, work: Work[Item, Result], items: Sequence[Item], advance: Advance = nothing) -> Results[Result]:
        """(number of an item, its result), in order."""
        if not items:
            return
        try:
            common = work.open()
            for i, item in enumerate(items):
                yield i, work.run(item, work.prepare(item), advance, common)
        finally:
            work.close()
