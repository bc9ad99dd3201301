"""Views made, and tokenised, by several processes, so that a GPU does not wait for one core of Python.

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
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import numpy as np

from layerscope.data.augment import make_views
from layerscope.data.augment_worker import open_tokenizer, token_ids

log = logging.getLogger("layerscope")

_TEXTS_AT_ONCE = 4
_MOST_WORKERS = 16


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ViewPool:
    """Makes views of texts with `workers` child processes; with fewer than two, or if they fail, in this one.

    With a `tokenizer` (a fast one, serialised) `make_ids` gives the views' token ids, cut to `max_length`.
    """

    def __init__(
        self,
        n_views: int,
        seed: int,
        augmenter: str = "builtin",
        workers: int | None = None,
        tokenizer: str | None = None,
        max_length: int | None = None,
    ) -> None:
        self.n_views, self.seed, self.augmenter = n_views, seed, augmenter
        self.tokenizer, self.max_length = tokenizer, max_length
        self._own_tokenizer: Any = None
        count = min(_MOST_WORKERS, cores_here() - 2) if workers is None else workers  # the GPU's host has work too
        self._count = count if augmenter == "builtin" and count > 1 and sys.executable else 0
        self._mine = threading.local()
        self._lock = threading.Lock()
        self._started: list[subprocess.Popen[bytes]] = []
        self._free: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        self._starter = threading.Thread(target=self._start_all, name="layerscope-starting-views")
        self._starter.start()  # in the background: each worker takes some milliseconds
        self._threads = ThreadPoolExecutor(max(1, self._count), thread_name_prefix="layerscope-views")

    def set_tokenizer(self, tokenizer: str | None, max_length: int | None) -> None:
        """Give the pool its tokenizer, before any views are asked for."""
        self.tokenizer, self.max_length = tokenizer, max_length if tokenizer is not None else None

    def _start_all(self) -> None:
        for _ in range(self._count):
            child = None
            try:
                child = _start()
                self._started.append(child)
            except Exception as error:
                log.warning("a process that makes views could not be started (%s)", error)
            self._free.put(child)  # whoever waits for a worker must hear that there is none

    @property
    def _children(self) -> list[subprocess.Popen[bytes]]:
        """The workers, once all are started."""
        self._starter.join()
        return self._started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the workers: at once, there is nothing that they could lose."""
        self._threads.shutdown(cancel_futures=True)
        for child in self._children:
            child.kill()
        for child in self._children:
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(OSError):  # of a worker that is gone
                        pipe.close()
            child.wait()

    def make(self, texts: Sequence[str]) -> list[list[str]]:
        """For every text its views, in order. For pools without a tokenizer."""
        if not self._count:
            return make_views(texts, self.n_views, self.seed, self.augmenter)
        return [views for made in self._threads.map(self._views, _parts(texts)) for views in made]

    def make_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token ids of every text's views, view by view. For pools with a tokenizer."""
        if not self._count:
            return self._ids_here(list(texts))
        return [ids for made in self._threads.map(self._ids, _parts(texts)) for ids in made]

    def _views(self, texts: list[str]) -> list[list[str]]:
        try:
            return json.loads(self._ask(texts).readline())
        except (OSError, ValueError) as error:
            log.warning("a process that makes views stopped (%s); they are made here instead", error)
            return make_views(texts, self.n_views, self.seed, self.augmenter)

    def _ids(self, texts: list[str]) -> list[np.ndarray]:
        try:
            answers = self._ask(texts)
            lengths = json.loads(answers.readline())
            flat = np.frombuffer(answers.read(4 * sum(lengths)), dtype=np.int32)
            if len(flat) != sum(lengths):
                raise OSError("its answer is incomplete")
            return np.split(flat, np.cumsum(lengths)[:-1])
        except (OSError, ValueError) as error:
            log.warning("a process that makes views stopped (%s); they are made here instead", error)
            return self._ids_here(texts)

    def _ids_here(self, texts: list[str]) -> list[np.ndarray]:
        assert self.tokenizer is not None
        with self._lock:
            if self._own_tokenizer is None:
                self._own_tokenizer = open_tokenizer(self.tokenizer, self.max_length)
        views = [view for made in make_views(texts, self.n_views, self.seed, self.augmenter) for view in made]
        return [np.array(row, dtype=np.int32) for row in token_ids(self._own_tokenizer, views)]

    def _ask(self, texts: list[str]) -> Any:
        """Send texts to this thread's worker; returns where its answer comes from."""
        child: Any = getattr(self._mine, "child", None)
        if child is None:  # each thread keeps one worker for itself
            if not hasattr(self._mine, "child"):
                self._mine.child = child = self._free.get()
            if child is None:
                raise OSError("it could not be started")
            if self.tokenizer is not None:
                child.stdin.write(json.dumps({"tokenizer": self.tokenizer, "max_length": self.max_length}).encode() + b"\n")
        child.stdin.write(json.dumps({"texts": texts, "views": self.n_views, "seed": self.seed}).encode() + b"\n")
        child.stdin.flush()
        return child.stdout


def _parts(texts: Sequence[str]) -> list[list[str]]:
    return [list(texts[i : i + _TEXTS_AT_ONCE]) for i in range(0, len(texts), _TEXTS_AT_ONCE)]


def _start() -> subprocess.Popen[bytes]:
    source = str(Path(__file__).resolve().parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "layerscope.data.augment_worker"]
    # a tokenizer's own threads would only get in the way of the other workers
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TOKENIZERS_PARALLELISM": "false"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, env=everything)  # noqa: S603 - our own module
