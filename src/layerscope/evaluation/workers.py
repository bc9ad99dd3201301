"""Worker processes for scoring: one BLAS thread each, so that they do not fight, and a task loaded once per worker."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from layerscope.errors import LayerscopeError
from layerscope.evaluation.score import Job, Scene, forget, quiet_mteb, run_job

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LOKY_MAX_CPU_COUNT")


def _start() -> None:
    import torch

    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    quiet_mteb()


def _end_with(parent: Any) -> None:
    """End this process when the run that started it is gone, be it killed: nobody waits for its work any more."""
    parent.join()
    os._exit(1)


def _run_many(scene: Scene, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return [run_job(scene, job) for job in jobs]


def score_all(scene: Scene, jobs: Sequence[Job], workers: int) -> Iterator[dict[str, Any]]:
    """Results of jobs as they are done; with no workers they are scored in this process.

    Workers are spawned, not forked: a fork of a process that has used threads may hang.
    """
    if workers == 0 or len(jobs) == 1:
        from threadpoolctl import threadpool_limits

        quiet_mteb()
        forget()
        try:
            with threadpool_limits(1):
                for job in jobs:
                    yield run_job(scene, job)
        finally:
            forget()
        return
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))  # read by the children when they load their libraries
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_start) as pool:
            futures = [pool.submit(_run_many, scene, part) for part in _parts(jobs, workers)]
            try:
                for future in as_completed(futures):
                    yield from future.result()
            except BrokenProcessPool as error:
                raise LayerscopeError(
                    "a scoring process died, most likely for lack of memory. What was scored is kept: run the same command "
                    "again, with fewer --workers."
                ) from error
            finally:
                for future in futures:
                    future.cancel()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _parts(jobs: Sequence[Job], workers: int) -> list[list[Job]]:
    """Small parts of one task each: a worker keeps its task, and no worker waits long for the others at the end."""
    parts: list[list[Job]] = []
    by_task: dict[str, list[Job]] = {}
    for job in jobs:
        by_task.setdefault(job.task.name, []).append(job)
    for same in by_task.values():
        size = max(1, min(8, len(same) // (workers * 3)))
        parts += [same[i : i + size] for i in range(0, len(same), size)]
    return parts
