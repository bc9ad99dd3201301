"""Child processes that make views of texts and prepare images, so that a GPU does not wait for one
core of Python."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

log = logging.getLogger("layerscope")

# A process without threads or a GPU that forks workers: they start in milliseconds.
START = "spawn" if os.name == "nt" else "forkserver"
# Nothing is imported from the current folder, and each worker uses one core.
ENVIRONMENT = {
    "PYTHONSAFEPATH": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

Answer = Callable[[Any, Any], Any]


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Answers requests with `answer(setup, request)`, a function of a module, in child processes.

    The workers start with the first request; until then `setup` may be replaced. With fewer than
    two `workers` this process answers. If a worker dies, or raises an error, this process answers
    that request and all that follow.
    """

    def __init__(self, answer: Answer, setup: Any, workers: int) -> None:
        self.answer = answer
        self.setup = setup
        self.count = workers if workers > 1 else 0
        self._executor: ProcessPoolExecutor | None = None
        if self.count and os.name != "nt":
            # the server imports what the workers need while this process goes on
            from multiprocessing import forkserver

            with children_start():
                multiprocessing.set_forkserver_preload([answer.__module__])
                forkserver.ensure_running()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        self.count = 0
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None

    def map(self, requests: Iterable[Any]) -> Iterator[Any]:
        """Yield the answers, in the order of the requests."""
        remaining = list(requests)
        if self.count:
            try:
                with children_start():
                    executor = self._started()
                    futures = [executor.submit(_answer, request) for request in remaining]
                for future in futures:
                    yield future.result()
                    remaining.pop(0)
            except Exception as error:
                reason = str(error) or type(error).__name__
                log.warning("worker processes stopped (%s); this process does their work", reason)
                self.close()
        for request in remaining:
            yield self.answer(self.setup, request)

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            context = multiprocessing.get_context(START)
            setup = (self.answer, self.setup)
            self._executor = ProcessPoolExecutor(self.count, context, _begin, setup)
        return self._executor


@contextmanager
def children_start() -> Iterator[None]:
    """Let processes that start in the block have the environment of workers.

    The main program is hidden from them: a script without `if __name__ == "__main__"` would run
    again in each.
    """
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    main = sys.modules["__main__"]
    os.environ.update(ENVIRONMENT)
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_work: tuple[Answer, Any]


def _begin(answer: Answer, setup: Any) -> None:
    """Get a worker process ready; it ends with the process that started it."""
    global _work
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started it
    os.dup2(2, 1)  # a library's prints are not part of this command's output
    _work = (answer, setup)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _answer(request: Any) -> Any:
    answer, setup = _work
    return answer(setup, request)
