"""What runs in a worker process: one piece of work, opened once, then item after item; and what it answers."""

from __future__ import annotations

import os
import platform
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from layerscope import errors
from layerscope.errors import LayerscopeError
from layerscope.version import VERSION


@dataclass(frozen=True)
class Outcome:
    """What a worker answers: `result`, unless there is a `reason`. An exception itself may not survive the way.

    `refused` names the error's class where trying again would change nothing."""

    result: Any = None
    reason: str | None = None
    refused: str | None = None
    trace: str = ""

    def error(self) -> LayerscopeError:
        """A refusal as the error that it was."""
        kind = getattr(errors, self.refused or "", LayerscopeError)
        error: LayerscopeError = kind.__new__(kind)  # some take more than their message
        Exception.__init__(error, self.reason)
        return error


def attempt(function: Callable[..., Any], *given: Any) -> Outcome:
    """Call a function; whatever it raises becomes part of the outcome."""
    try:
        return Outcome(function(*given))
    except LayerscopeError as error:
        return Outcome(reason=str(error), refused=type(error).__name__)
    except Exception as error:
        return Outcome(reason=f"{type(error).__name__}: {error}", trace=traceback.format_exc())


@dataclass(frozen=True)
class Expected:
    """What must be the same on every machine, and how many threads a worker may use."""

    version: str = VERSION
    threads: int = 1


class Actor:
    """Two items at most are inside at a time: one is run, the next is prepared meanwhile."""

    def __init__(self, work: Any, expected: Expected) -> None:
        self.work, self.expected = work, expected
        self.busy = threading.Lock()
        self.preparing = threading.Lock()  # a tokenizer serves one thread at a time
        self.done: dict[int, int] = {}  # units of the items that are inside

    def open(self) -> Outcome:
        """Get ready; the answer says where this worker is."""
        outcome = attempt(self._open)
        return outcome if outcome.reason is None else replace(outcome, reason=f"on {platform.node()}: {outcome.reason}")

    def _open(self) -> dict[str, Any]:
        import torch

        if self.expected.version != VERSION:
            raise LayerscopeError(
                f"the worker has layerscope {VERSION}, the run {self.expected.version}. Install the same on every machine."
            )
        torch.set_num_threads(self.expected.threads)
        common = self.work.open()
        return {"node": _node(), "pid": os.getpid(), "torch": torch.__version__, "common": common}

    def run(self, index: int, item: Any, common: Any) -> Outcome:
        """The outcome of an item: its result, and how many units it was."""
        self.done[index] = 0
        try:
            return attempt(self._run, index, item, common)
        finally:
            self.done.pop(index, None)

    def _run(self, index: int, item: Any, common: Any) -> tuple[Any, int]:
        def advance(units: int) -> None:
            self.done[index] += units

        with self.preparing:
            prepared = self.work.prepare(item)
        with self.busy:
            result = self.work.run(item, prepared, advance, common)
        return result, self.done[index]

    def progress(self) -> dict[int, int]:
        """Units done of the items that are inside."""
        return dict(self.done)


def _node() -> str:
    """This machine; several nodes of a cluster may run on one."""
    import ray

    return f"{platform.node()} ({ray.get_runtime_context().get_node_id()[:8]})"
