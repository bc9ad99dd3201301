"""Processes that score: one BLAS thread each, which load a task once and then score many layers of
it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import resource_tracker
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.evaluation.run import texts_file
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    clear_caches,
    quiet_mteb,
    run_job,
)
from layerscope.store.checked import ArrayFile

__all__ = ["ScoringPool"]

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "LOKY_MAX_CPU_COUNT",
)
# the current folder is not on the children's path: a user's socket.py is not imported
_FOR_CHILDREN = (*_ONE_THREAD, "PYTHONSAFEPATH")
COPIES = 3  # of a task's vectors in a process: as they are read, as mteb asks for them, and what it makes of them
_MOST_BYTES = 2**34  # for all processes together


def _start() -> None:
    import torch

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    quiet_mteb()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # not before: of an exit while it starts up the pool prints a traceback


def _end_with(parent: Any) -> None:
    """End this process when the run that started it has ended or was killed."""
    parent.join()
    os._exit(1)


def _run_many(context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[dict[str, Any]]:
    try:
        return [run_job(context, job) for job in jobs]
    except SystemExit:  # the pool would hand it on and begin the next: a process that is told to end dies, which is told
        os._exit(1)


class ScoringPool(AbstractContextManager["ScoringPool"]):
    """Processes that score. They start when they are first needed and end with the pool.

    They are spawned, not forked: a fork of a process that has used threads may hang.
    """

    def __init__(self, workers: int) -> None:
        self.workers = self.size = workers
        self._pool: ProcessPoolExecutor | None = None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            for process in list(self._pool._processes.values()) if any(error) else ():
                process.terminate()  # a result is written whole: none is waited for
            self._pool.shutdown(cancel_futures=True)

    def fitting(self, vectors: int) -> int:
        """How many processes may score a task at a time, by the bytes of its vectors at one
        layer."""
        return max(1, min(self.workers, _MOST_BYTES // max(1, COPIES * vectors)))

    def score(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[dict[str, Any]]:
        """Results of jobs, as they are done. Processes begin at once, this process when it is
        asked."""
        if self.workers == 0:
            return _score_here(context, jobs)
        largest = (
            max(ArrayFile(texts_file(context.run, job.task.name)).shape("keys")[0] for job in jobs)
            if jobs
            else 0
        )
        fit = self.fitting(4 * context.width * largest)
        if self._pool is not None and self.size != fit:
            self._pool.shutdown()  # after what is under way
            self._pool = None
        with _children_start(), _deaths_told():
            if (
                self._pool is None
            ):  # it starts a process of its own, the tracker of what the others share
                self.size, self._pool = (
                    fit,
                    ProcessPoolExecutor(fit, multiprocessing.get_context("spawn"), _start),
                )
            return _done(
                [self._pool.submit(_run_many, context, part) for part in _parts(jobs, fit)]
            )


def _score_here(context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[dict[str, Any]]:
    from threadpoolctl import threadpool_limits

    quiet_mteb()
    clear_caches()
    try:
        with threadpool_limits(1):
            yield from (run_job(context, job) for job in jobs)
    finally:
        clear_caches()


@contextmanager
def _children_start() -> Iterator[None]:
    """What children read when they start and load their libraries; this process and what else it
    starts do not keep it."""
    before = {name: os.environ[name] for name in _FOR_CHILDREN if name in os.environ}
    os.environ.update(dict.fromkeys(_FOR_CHILDREN, "1"))
    if os.name != "nt":
        resource_tracker.ensure_running()  # first: when it starts, it lets Ctrl-C through again
    # Ctrl-C, which they inherit blocked, is for this process, which then ends them
    held = None if os.name == "nt" else signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if held is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        for name in _FOR_CHILDREN:
            os.environ.pop(name, None)
        os.environ.update(before)


def _done(futures: Sequence[Future[list[dict[str, Any]]]]) -> Iterator[dict[str, Any]]:
    with _deaths_told():
        for future in as_completed(futures):
            yield from future.result()


@contextmanager
def _deaths_told() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise LayerscopeError(
            "a scoring process died, most likely for lack of memory. What was scored is kept: run the same command "
            "again, with fewer scoring_workers=."
        ) from error


def _parts(jobs: Sequence[ScoreJob], workers: int) -> list[list[ScoreJob]]:
    """Small parts of one task each: a worker keeps its task, and no worker waits long for the
    others at the end."""
    parts: list[list[ScoreJob]] = []
    by_task: dict[str, list[ScoreJob]] = {}
    for job in jobs:
        by_task.setdefault(job.task.name, []).append(job)
    for same in by_task.values():
        size = max(1, min(8, len(same) // (workers * 3)))
        parts += [same[i : i + size] for i in range(0, len(same), size)]
    return parts
