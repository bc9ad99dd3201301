"""Child processes that answer requests, so that a GPU, or a model, does not wait for one core of
Python.

The workers are plain child processes: no fork of a process that uses a GPU, nothing that a script
without a `__main__` guard could trip over, and nothing imported from the current folder. A worker
that dies, or cannot be started, costs time but no result: its requests are answered in this
process. Workers end with the process that started them, even if that is killed.
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
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from layerscope.errors import LayerscopeError

log = logging.getLogger("layerscope")

_LONGEST_WAIT = 2.0  # seconds, for a process that has been killed


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerError(LayerscopeError):
    """A request that a worker could not answer, with the reason."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Answers requests with `answer(setup, request)`, a function of a module, in `workers` child
    processes. A context.

    With fewer than two workers everything is answered in this process. `setup` is sent to the
    workers once; it may be set until the first request is made. They start in the background, right
    away. Where `imports` names all that they need beyond layerscope, they are forks of one process
    that has imported it.
    """

    def __init__(
        self,
        answer: Callable[[Any, Any], Any],
        setup: Any,
        workers: int,
        environment: dict[str, str] | None = None,
        imports: Sequence[str] | None = None,
    ) -> None:
        self.answer, self.setup = answer, setup
        self.count = workers if workers > 1 and sys.executable else 0
        self._environment = environment or {}
        self._thread = threading.local()
        self._started: list[Worker] = []
        self._free: SimpleQueue[Worker | None] = SimpleQueue()
        self._nursery: Nursery | None = None
        self._first = threading.Lock()
        forked = imports is not None and self.count > 0 and hasattr(os, "fork")
        start = partial(self._open_nursery, imports or ()) if forked else self._start_all
        self._starter = threading.Thread(target=start, name="layerscope-start-workers")
        self._starter.start()
        self._threads = ThreadPoolExecutor(
            max(1, self.count), thread_name_prefix="layerscope-workers"
        )

    def _start_all(self) -> None:
        for _ in range(self.count):
            child = None
            try:
                variables, pipe = _variables(self._environment), subprocess.PIPE
                child = subprocess.Popen(_command("main()"), stdin=pipe, stdout=pipe, env=variables)  # noqa: S603 - our own
                self._started.append(child)
            except Exception as error:
                log.warning(
                    "a worker process could not be started (%s); its work is done in this process",
                    error,
                )
            self._free.put(child)  # a thread that waits for a worker must hear that there is none

    def _open_nursery(self, imports: Sequence[str]) -> None:
        try:
            self._nursery = Nursery(
                self.count, self._environment, [self.answer.__module__, *imports]
            )
        except Exception as error:
            self._give_up(self.count, error)

    def _fork_all(self) -> None:
        """Have the workers forked by the first thread that asks for one: by then the setup is
        known."""
        self._starter.join()
        if self._nursery is None or not self._first.acquire(blocking=False):
            return
        left = self.count
        try:
            self._nursery.send((self.answer.__module__, self.answer.__qualname__, self.setup))
            while left:
                self._started.append(self._nursery.next_worker())
                self._free.put(self._started[-1])
                left -= 1
        except Exception as error:
            self._give_up(left, error)

    def _give_up(self, count: int, error: Exception) -> None:
        log.warning(
            "%d worker processes could not be started (%s); their work is done in this process",
            count,
            error,
        )
        for _ in range(count):
            self._free.put(None)

    @property
    def children(self) -> list[Worker]:
        """The workers, once all have been started."""
        self._fork_all()
        return self._started

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers at once: they hold nothing that could be lost."""
        self._threads.shutdown(cancel_futures=True)
        self._starter.join()
        for child in self._started:
            child.kill()
        for child in self._started:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # of a worker that is gone
                        pipe.close()
            child.wait()
        if self._nursery is not None:
            self._nursery.close()

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
                log.warning(
                    "a worker process stopped (%s); its work is done in this process",
                    error or type(error).__name__,
                )
                self._thread.warned = True
            self._thread.worker = None
            return self.answer(self.setup, request)
        if not good:
            raise WorkerError(found)
        return found

    def _worker(self) -> Any:
        if not hasattr(self._thread, "worker"):  # each thread keeps one worker for itself
            self._fork_all()
            self._thread.worker = self._free.get()
            if self._thread.worker is not None and self._nursery is None:
                _send(
                    self._thread.worker.stdin,
                    (self.answer.__module__, self.answer.__qualname__, self.setup),
                )
        if self._thread.worker is None:
            raise OSError("there is none")
        return self._thread.worker


def _command(call: str, *options: str) -> list[str]:
    # -P: the current folder is not on the path, so that a user's random.py is not imported
    return [
        sys.executable,
        *options,
        "-P",
        "-c",
        f"from layerscope.data import workers; workers.{call}",
    ]


def _variables(environment: dict[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    paths = [
        str(Path(__file__).resolve().parents[2]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
        *more,
    ]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}


class Nursery:
    """One process that imports what workers need, is sent their setup, and forks them: it starts
    while a GPU waits for the views.

    A dozen processes that import the same on a machine with as many cores take several times as
    long. Nothing has been started in it that a fork could break: no GPU, no threads. It ends its
    workers when this process lets go of it, or ends.
    """

    def __init__(self, count: int, environment: dict[str, str], imports: Sequence[str]) -> None:
        pipes: list[tuple[int, int]] = []
        try:
            pipes.extend(os.pipe() for _ in range(2 * count))
        except OSError:  # too many open files
            _close_all(pipes)
            raise
        both = list(zip(pipes[::2], pipes[1::2], strict=True))  # of each worker: requests, answers
        theirs = [(requests[0], answers[1]) for requests, answers in both]
        self._ours = iter([(requests[1], answers[0]) for requests, answers in both])
        # -S: without `site`, which finds installed packages and runs what they hook into Python's
        #   start: often half of it
        command = _command(f"run_nursery({list(imports)!r}, {theirs!r})", "-S")
        installed = [
            path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")
        ]
        try:
            self.process = subprocess.Popen(  # noqa: S603 - our own module
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_variables(environment, installed),
                pass_fds=[end for ends in theirs for end in ends],
            )
        except BaseException:
            _close_all(self._ours)
            raise
        finally:
            _close_all(theirs)

    def send(self, setup: Any) -> None:
        """Send the setup: workers are forked when it is there."""
        _send(self.process.stdin, setup)

    def next_worker(self) -> Worker:
        """The next worker, as soon as it is forked."""
        requests, answers = (
            os.fdopen(end, mode) for end, mode in zip(next(self._ours), ("wb", "rb"), strict=True)
        )
        try:
            return ForkedWorker(int(_receive(self.process.stdout)), requests, answers)
        except BaseException:
            requests.close()
            answers.close()
            raise

    def close(self) -> None:
        """End it, and whatever it has forked."""
        _close_all(self._ours)  # of workers that were never asked for
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()


@dataclass
class ForkedWorker:
    """A worker by its number: it is the child of another process."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def kill(self) -> None:
        """End it at once."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def poll(self) -> int | None:
        """None while it runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return -signal.SIGKILL
        return None

    def wait(self) -> None:
        """Until it has ended, for two seconds at most.

        Its parent ignores the signal that it ended, so that it is gone at once. If that parent was
        killed, it may stay listed.
        """
        end = time.monotonic() + _LONGEST_WAIT
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.001)


Worker = subprocess.Popen[bytes] | ForkedWorker


def run_nursery(imports: Sequence[str], pipes: Sequence[tuple[int, int]]) -> None:
    """The main program of a nursery: `pipes` are the ends for each worker's requests and
    answers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended workers need not be waited for
    numbers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    os.nice(5)  # behind the process that gives a GPU its work
    for name in imports:
        with suppress(ImportError):  # the code that needs it will say so
            importlib.import_module(name)
    try:
        module, name, setup = _receive(sys.stdin.buffer)
    except EOFError:
        return
    answer = getattr(importlib.import_module(module), name)
    with suppress(
        Exception
    ):  # what the first answer takes long to make, a tokenizer, is made once for all
        answer(setup, [])
    born = []
    for i, (requests, answers) in enumerate(pipes):
        worker = os.fork()
        if worker == 0:
            try:
                os.close(0)
                _close_all(pipes[i + 1 :])  # or the parent would not hear of their end
                answer_all(answer, setup, os.fdopen(requests, "rb"), os.fdopen(answers, "wb"))
            finally:
                os._exit(0)
        born.append(worker)
        os.close(requests)
        os.close(answers)
        _send(numbers, worker)
    sys.stdin.buffer.read()  # until the parent closes it, or ends
    for worker in born:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.wait()


def answer_all(
    answer: Callable[[Any, Any], Any], setup: Any, requests: IO[bytes], answers: IO[bytes]
) -> None:
    """Answer requests until there are no more."""
    while True:
        try:
            request = _receive(requests)
        except EOFError:
            return
        try:
            found = (True, answer(setup, request))
        except Exception as error:
            found = (False, f"{type(error).__name__}: {error}")
        _send(answers, found)


def main() -> None:
    """The main program of a worker. The first message names the function and holds its setup."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the process that started this one, which then ends it
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not end up among the answers
    with suppress(EOFError):
        module, name, setup = _receive(sys.stdin.buffer)
        answer_all(getattr(importlib.import_module(module), name), setup, sys.stdin.buffer, pipe)


def _close_all(pipes: Iterable[tuple[int, int]]) -> None:
    for ends in pipes:
        for end in ends:
            os.close(end)


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
