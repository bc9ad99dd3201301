"""Views made by several processes, so that a GPU does not wait for one core of Python.

The workers are plain child processes that read texts and write views: no fork of a process that uses a GPU, and nothing that
a script without a `__main__` guard could trip over. What comes out is what `make_views` gives.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from layerscope.data.augment import make_views

log = logging.getLogger("layerscope")

_TEXTS_AT_ONCE = 4
_MOST_WORKERS = 16


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ViewPool:
    """Makes views of texts with `workers` child processes; with fewer than two, or if they fail, in this one."""

    def __init__(self, n_views: int, seed: int, augmenter: str = "builtin", workers: int | None = None) -> None:
        self.n_views, self.seed, self.augmenter = n_views, seed, augmenter
        count = min(_MOST_WORKERS, cores_here() - 2) if workers is None else workers  # the GPU's host has work too
        self._children: list[subprocess.Popen[str]] = []
        self._mine = threading.local()
        if augmenter == "builtin" and count > 1 and sys.executable:
            self._children = [_start() for _ in range(count)]
        self._free = list(self._children)
        self._threads = ThreadPoolExecutor(max(1, len(self._children)), thread_name_prefix="layerscope-views")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # of a worker that is gone
                        pipe.close()
            child.wait()

    def make(self, texts: Sequence[str]) -> list[list[str]]:
        """For every text its views, in order."""
        if not self._children:
            return make_views(texts, self.n_views, self.seed, self.augmenter)
        parts = [list(texts[i : i + _TEXTS_AT_ONCE]) for i in range(0, len(texts), _TEXTS_AT_ONCE)]
        return [views for made in self._threads.map(self._part, parts) for views in made]

    def _part(self, texts: list[str]) -> list[list[str]]:
        child = getattr(self._mine, "child", None)
        if child is None:  # each thread keeps one worker for itself
            with self._lock:
                child = self._mine.child = self._free.pop()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps({"texts": texts, "views": self.n_views, "seed": self.seed}) + "\n")
            child.stdin.flush()
            return json.loads(child.stdout.readline())
        except (OSError, ValueError) as error:
            log.warning("a process that makes views stopped (%s); they are made here instead", error)
            return make_views(texts, self.n_views, self.seed, self.augmenter)


def _start() -> subprocess.Popen[str]:
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "layerscope.data.augment_worker"]
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=everything)  # noqa: S603 - our own module
