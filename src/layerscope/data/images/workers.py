"""Images worked on by several processes, so that decoding and resizing do not hold up the model.

The workers are plain child processes: no fork of a process that uses a GPU, and nothing that a script without a `__main__`
guard could trip over. What comes out is what `work.answer` gives in this process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from layerscope.data.augment_pool import cores_here
from layerscope.data.images.messages import receive, send
from layerscope.data.images.work import Request, answer
from layerscope.errors import DataError

_AT_ONCE = 16
_MOST_WORKERS = 8
_START_AFTER = 400  # images: fewer are done before the processes are up


class ImageWorkers:
    """Answers requests with `workers` child processes, which start when there is much to do; 0 or 1: in this process."""

    def __init__(self, processor: Any = None, workers: int | None = None) -> None:
        self.processor = processor
        self._asked = workers
        self._count = min(_MOST_WORKERS, cores_here()) if workers is None else workers
        self._children: list[subprocess.Popen[bytes]] = []
        self._free: list[subprocess.Popen[bytes]] = []
        self._threads: ThreadPoolExecutor | None = None
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._done = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process has workers of its own."""
        return ImageWorkers, (self.processor, self._asked)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # of a worker that is gone
                        pipe.close()
            child.wait()
        self._children, self._free = [], []
        self._mine = threading.local()

    def map(self, requests: Sequence[Request]) -> Iterator[list[Any]]:
        """The answers, in order."""
        images = sum(len(request.items) * max(1, request.views) for request in requests)
        if self._threads is None and self._wanted(images):
            self._start()
        self._done += images
        if self._threads is None:
            return (answer(request, self.processor) for request in requests)
        return self._threads.map(self._ask, requests)

    def _wanted(self, images: int) -> bool:
        if self._count < 2 or not sys.executable:
            return False
        # Asked for in so many words, workers start at once.
        return self._asked is not None or self._done + images >= _START_AFTER

    def _start(self) -> None:
        self._children = [_process() for _ in range(self._count)]
        for child in self._children:
            assert child.stdin is not None
            send(child.stdin, self.processor)
        self._free = list(self._children)
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="layerscope-images")

    def _ask(self, request: Request) -> list[Any]:
        child = getattr(self._mine, "child", None)
        if child is None:  # each thread keeps one worker for itself
            with self._lock:
                child = self._mine.child = self._free.pop()
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            send(child.stdin, request)
            good, found = receive(child.stdout)
        except (OSError, EOFError):  # the worker is gone: what it was asked is done here
            return answer(request, self.processor)
        if not good:
            raise DataError(f"an image could not be prepared: {found}")
        return found


def split(items: Sequence[Any], at_once: int = _AT_ONCE) -> list[slice]:
    """Parts of a list that are asked for one by one."""
    return [slice(i, i + at_once) for i in range(0, len(items), at_once)]


def _process() -> subprocess.Popen[bytes]:
    source = str(Path(__file__).resolve().parents[3])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "layerscope.data.images.worker"]
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=everything)  # noqa: S603 - our own module
