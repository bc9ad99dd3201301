"""Processes that score: one BLAS thread each, which load a task once and then score many layers of
it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.evaluation.results import ScoreResult
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    open_task,
    quiet_mteb,
    score_jobs,
)

__all__ = ["ScoringPool"]

# The current folder is not on the children's path: a user's socket.py is not imported.
_CHILDREN = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONSAFEPATH")

_open_once = lru_cache(maxsize=1)(open_task)


def _start() -> None:
    """Prepare a process that scores."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends them
    import torch

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    quiet_mteb()


def _end_with(parent: Any) -> None:
    """End this process when the run that started it has ended or was killed."""
    parent.join()
    os._exit(1)


def _score_batch(context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[ScoreResult]:
    return list(score_jobs(context, jobs, _open_once))


class ScoringPool(AbstractContextManager["ScoringPool"]):
    """Processes that score; with `workers` 0, this process does.

    They are spawned, not forked: a fork of a process that has used threads may hang.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(workers, spawn, _start) if workers else None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            processes = self._pool._processes or {}
            for process in list(processes.values()) if any(error) else ():
                process.terminate()  # a result is written whole: none is waited for
            self._pool.shutdown(cancel_futures=True)

    def score(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[ScoreResult]:
        """Yield the results of jobs of one task, as they are done."""
        if self._pool is None or len(jobs) == 1:  # one job is not worth a process
            yield from _score_here(context, jobs)
            return
        # small parts: no process waits long for the others at the end
        size = max(1, min(8, len(jobs) // (self.workers * 3)))
        batches = [jobs[i : i + size] for i in range(0, len(jobs), size)]
        try:
            with _children_environment():
                futures = [self._pool.submit(_score_batch, context, batch) for batch in batches]
            for future in as_completed(futures):
                yield from future.result()
        except BrokenProcessPool as error:
            raise LayerscopeError(
                "a scoring process died, most likely for lack of memory. What was scored is kept: "
                "run the same command again, with fewer scoring_workers=."
            ) from error


def _score_here(context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[ScoreResult]:
    from threadpoolctl import threadpool_limits

    quiet_mteb()
    with threadpool_limits(1):
        yield from score_jobs(context, jobs)


@contextmanager
def _children_environment() -> Iterator[None]:
    """Set the variables that children read when they start; this process does not keep them."""
    before = {name: os.environ.pop(name, None) for name in _CHILDREN}
    os.environ.update(dict.fromkeys(_CHILDREN, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value
