"""Processes that score: one BLAS thread each, which load a task once and then score many layers of it."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from layerscope.errors import LayerscopeError
from layerscope.evaluation.scoring import ScoreJob, ScoringContext, clear_caches, load_task, quiet_mteb, run_job

R = TypeVar("R")

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
# the current folder is not on the children's path: a user's socket.py is not imported
_FOR_CHILDREN = (*_ONE_THREAD, "PYTHONSAFEPATH")


def _start() -> None:
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


def _run_many(context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[dict[str, Any]]:
    return [run_job(context, job) for job in jobs]


class ScoringPool(AbstractContextManager["ScoringPool"]):
    """Processes that score. They start when they are first needed and end with the pool.

    They are spawned, not forked: a fork of a process that has used threads may hang.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            for name in _FOR_CHILDREN:
                os.environ.pop(name, None)
            os.environ.update(self._before)

    def start(self, work: Callable[..., R], context: ScoringContext, parts: Sequence[Any]) -> Iterator[R]:
        """`work(context, part)` of every part, as they are done. Processes begin at once, this process when it is asked."""
        if self.workers == 0:
            return (work(context, part) for part in parts)
        if self._pool is None:
            self._before = {name: os.environ[name] for name in _FOR_CHILDREN if name in os.environ}
            os.environ.update(dict.fromkeys(_FOR_CHILDREN, "1"))  # read by the children when they start and load their libraries
            self._pool = ProcessPoolExecutor(self.workers, multiprocessing.get_context("spawn"), _start)
        return _done([self._pool.submit(work, context, part) for part in parts])

    def score(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[dict[str, Any]]:
        """Results of jobs, as they are done."""
        if self.workers:
            return chain.from_iterable(self.start(_run_many, context, _parts(jobs, self.workers)))
        return _score_here(context, jobs)


def _score_here(context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[dict[str, Any]]:
    from threadpoolctl import threadpool_limits

    quiet_mteb()
    clear_caches()
    with threadpool_limits(1):
        yield from (run_job(context, job) for job in jobs)
    clear_caches()


def _done(futures: Sequence[Future[R]]) -> Iterator[R]:
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise LayerscopeError(
            "a scoring process died, most likely for lack of memory. What was scored is kept: run the same command "
            "again, with fewer scoring_workers=."
        ) from error


def time_job(context: ScoringContext, job: ScoreJob) -> tuple[str, float, float, int]:
    """A job's task, the seconds of loading it and of scoring the job, and the most memory this process has held (0: unknown)."""
    start = time.perf_counter()
    quiet_mteb()
    load_task(job.task)
    loaded = time.perf_counter()
    run_job(context, job)
    return job.task.name, loaded - start, time.perf_counter() - loaded, peak_memory()


def peak_memory() -> int:
    """The most memory this process has held, in bytes; 0 where the system does not say it in a file."""
    said = Path("/proc/self/status")
    lines = said.read_text(encoding="ascii").splitlines() if said.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def _parts(jobs: Sequence[ScoreJob], workers: int) -> list[list[ScoreJob]]:
    """Small parts of one task each: a worker keeps its task, and no worker waits long for the others at the end."""
    parts: list[list[ScoreJob]] = []
    by_task: dict[str, list[ScoreJob]] = {}
    for job in jobs:
        by_task.setdefault(job.task.name, []).append(job)
    for same in by_task.values():
        size = max(1, min(8, len(same) // (workers * 3)))
        parts += [same[i : i + size] for i in range(0, len(same), size)]
    return parts
