"""Child processes that make views of texts and prepare images, so that a GPU does not wait for one
core of Python."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import resource_tracker
from types import ModuleType
from typing import Any

from layerscope.errors import LayerscopeError

if os.name != "nt":
    from multiprocessing import forkserver

log = logging.getLogger("layerscope")

# A process without threads or a GPU that forks workers: they start in milliseconds.
START = "spawn" if os.name == "nt" else "forkserver"


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerError(LayerscopeError):
    """A request that a worker could not answer, with the reason."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Answers requests with `answer(setup, request)`, a function of a module, in child processes.

    With fewer than two `workers` everything is answered in this process. The processes start with
    the first request, until which `setup` may be replaced; after `get_ready` they start sooner. A
    process that dies, or cannot be started, costs time but no result: from then on this process
    answers.
    """

    def __init__(
        self,
        answer: Callable[[Any, Any], Any],
        setup: Any,
        workers: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.answer = answer
        self.setup = setup
        self.count = workers if workers > 1 else 0
        self._environment = dict(environment or {})
        self._executor: ProcessPoolExecutor | None = None

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None

    def get_ready(self) -> None:
        """Start the process that forks the others, and let it import what they need, in the
        background. Where there are no forks, nothing happens before the first request."""
        if self.count and START == "forkserver":
            try:
                with children_start(self._environment):
                    multiprocessing.set_forkserver_preload([self.answer.__module__])
                    forkserver.ensure_running()
            except OSError as error:
                self._give_up(error)

    def map(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield the answers, in the order of the requests."""
        for request, future in self._submit(list(requests)):
            yield (
                self.answer(self.setup, request)
                if future is None
                else self._result(request, future)
            )

    def _submit(self, requests: list[Any]) -> list[tuple[Any, Future[Any] | None]]:
        if not self.count:
            return [(request, None) for request in requests]
        try:
            with children_start(self._environment):
                if self._executor is None:
                    context = multiprocessing.get_context(START)
                    setup = pickle.dumps((self.answer, self.setup))
                    self._executor = ProcessPoolExecutor(
                        self.count, context, _begin, (setup, self._environment)
                    )
                return [(request, self._executor.submit(_answer, request)) for request in requests]
        except (OSError, BrokenProcessPool, pickle.PickleError, AttributeError, TypeError) as error:
            self._give_up(error)
            return [(request, None) for request in requests]

    def _result(self, request: Any, future: Future[Any]) -> Any:
        try:
            good, answer = future.result()
        except BrokenProcessPool as error:
            if self.count:
                self._give_up(error)
            return self.answer(self.setup, request)
        if not good:
            raise WorkerError(answer)
        return answer

    def _give_up(self, error: Exception) -> None:
        reason = str(error) or type(error).__name__
        log.warning("worker processes stopped (%s); this process does their work", reason)
        self.close()
        self.count = 0


@contextmanager
def children_start(environment: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are spawned in the block import nothing from the current folder, and start
    with these variables.

    The main program is hidden from them: a script without `if __name__ == "__main__"` would run
    again in each. Ctrl-C is for this process, which then ends them.
    """
    settings = {**environment, "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in settings}
    main = sys.modules["__main__"]
    os.environ.update(settings)
    if os.name != "nt":
        resource_tracker.ensure_running()  # first: when it starts, it lets Ctrl-C through again
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if os.name != "nt":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_work: tuple[Callable[[Any, Any], Any], Any]


def _begin(setup: bytes, environment: Mapping[str, str]) -> None:
    """Get a worker process ready; it ends with the process that started it."""
    global _work
    os.environ.update(environment)  # a process that forks keeps the variables it was started with
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what a library prints is not part of this command's output
    _work = pickle.loads(setup)  # noqa: S301 - made by the process that started this one


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _answer(request: Any) -> tuple[bool, Any]:
    answer, setup = _work
    try:
        return True, answer(setup, request)
    except Exception as error:
        return False, f"{type(error).__name__}: {error}"
