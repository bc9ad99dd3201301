"""Child processes that answer requests, so that a GPU, or a model, does not wait for one core of Python.

The workers are plain child processes: no fork of a process that uses a GPU, nothing that a script without a `__main__` guard
could trip over, and nothing imported from the current folder. A worker that dies, or cannot be started, costs time but no
result: its requests are answered in this process. Workers end with the process that started them, even if that is killed.
docs/decisions/worker-processes.md says why this is not a pool of the standard library or of joblib.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import IO, Any, Self

from layerscope.errors import LayerscopeError

log = logging.getLogger("layerscope")


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerError(LayerscopeError):
    """A request that a worker could not answer, with the reason."""


class WorkerPool:
    """Answers requests with `answer(setup, request)`, a function of a module, in `workers` child processes. A context.

    With fewer than two workers everything is answered in this process. `setup` is sent to each worker once; it may be set
    until the first request is made. Workers start in the background, right away. Those that need no more than layerscope and
    installed packages may be `plain`: they start without looking at what packages have hooked into Python's start.
    """

    def __init__(
        self,
        answer: Callable[[Any, Any], Any],
        setup: Any,
        workers: int,
        environment: dict[str, str] | None = None,
        plain: bool = False,
    ) -> None:
        self.answer, self.setup = answer, setup
        self.count = workers if workers > 1 and sys.executable else 0
        self._environment, self._plain = environment or {}, plain
        self._thread = threading.local()
        self._started: list[subprocess.Popen[bytes]] = []
        self._free: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        self._starter = threading.Thread(target=self._start_all, name="layerscope-start-workers")
        self._starter.start()
        self._threads = ThreadPoolExecutor(max(1, self.count), thread_name_prefix="layerscope-workers")

    def _start_all(self) -> None:
        for _ in range(self.count):
            child = None
            try:
                child = start_worker(self._environment, self._plain)
                self._started.append(child)
            except Exception as error:
                log.warning("a worker process could not be started (%s); its work is done in this process", error)
            self._free.put(child)  # a thread that waits for a worker must hear that there is none

    @property
    def children(self) -> list[subprocess.Popen[bytes]]:
        """The workers, once all have been started."""
        self._starter.join()
        return self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers at once: they hold nothing that could be lost."""
        self._threads.shutdown(cancel_futures=True)
        for child in self.children:
            child.kill()
        for child in self.children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # of a worker that is gone
                        pipe.close()
            child.wait()

    def map(self, requests: Iterable[Any]) -> Iterator[Any]:
        """The answers, in the order of the requests."""
        if not self.count:
            return (self.answer(self.setup, request) for request in requests)
        return self._threads.map(self._ask, requests)

    def _ask(self, request: Any) -> Any:
        """Ask the worker of this thread. What a dead worker was asked is answered here."""
        try:
            worker = self._worker()
            _send(worker.stdin, request)
            good, found = _receive(worker.stdout)
        except (OSError, EOFError, pickle.PickleError, AttributeError, TypeError) as error:
            if not getattr(self._thread, "warned", False):
                log.warning("a worker process stopped (%s); its work is done in this process", error or type(error).__name__)
                self._thread.warned = True
            self._thread.worker = None
            return self.answer(self.setup, request)
        if not good:
            raise WorkerError(found)
        return found

    def _worker(self) -> Any:
        if not hasattr(self._thread, "worker"):  # each thread keeps one worker for itself
            self._thread.worker = self._free.get()
            if self._thread.worker is not None:
                _send(self._thread.worker.stdin, (self.answer.__module__, self.answer.__qualname__, self.setup))
        if self._thread.worker is None:
            raise OSError("there is none")
        return self._thread.worker


def start_worker(environment: dict[str, str], plain: bool = False) -> subprocess.Popen[bytes]:
    """A worker that waits for requests."""
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    # -P: the current folder is not on the path, so that a user's random.py is not imported
    command = [sys.executable, "-P", "-c", "from layerscope.data.workers import main; main()"]
    if plain:
        # -S: without `site`, which finds the installed packages and runs their hooks: often half of a worker's start.
        # And behind the process that gives a GPU its work: more workers than there are free cores would hold that up.
        command[1:] = ["-S", "-P", "-c", "import os; getattr(os, 'nice', int)(5); " + command[-1]]
        paths += [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables)  # noqa: S603 - our own module


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more. The first message names the function and holds its setup."""
    try:
        module, name, setup = _receive(requests)
        answer = getattr(importlib.import_module(module), name)
        while True:
            request = _receive(requests)
            try:
                found = (True, answer(setup, request))
            except Exception as error:
                found = (False, f"{type(error).__name__}: {error}")
            _send(answers, found)
    except EOFError:
        return


def main() -> None:
    """The main program of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, which then ends it
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    serve(sys.stdin.buffer, pipe)


def _send(stream: IO[bytes] | None, value: Any) -> None:
    """Write one value: its length, then its bytes."""
    assert stream is not None
    data = pickle.dumps(value, protocol=5)
    stream.write(struct.pack("<q", len(data)))
    stream.write(data)
    stream.flush()


def _receive(stream: IO[bytes] | None) -> Any:
    """Read one value; EOFError where there are no more."""
    assert stream is not None
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError("its answer is incomplete" if head else "")
    size = struct.unpack("<q", head)[0]
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("its answer is incomplete")
    return pickle.loads(data)  # noqa: S301 - between a process and the workers that it started
