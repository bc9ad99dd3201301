"""Scoring on a device: a task's data are read once, and all its layers and readouts are scored
together.

Results are files of their own, next to those that mteb's code would make, and say what made them. A
task that has steps of its own in mteb is scored by mteb.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from layerscope.evaluation.items import ItemScores
from layerscope.evaluation.results import ScoreResult, SplitScore, write_result
from layerscope.evaluation.scoring import (
    OpenTask,
    ScoreJob,
    ScoringContext,
    Undefined,
    encoded_texts,
)
from layerscope.evaluation.tasks import reseed
from layerscope_gpu.mteb_tasks.problems import NotDescribed, Part, Problem, parts_of
from layerscope_gpu.scoring.kmeans import Clustering, cluster
from layerscope_gpu.scoring.ranking import Pairs, Ranking, pair_scores, rank_scores
from layerscope_gpu.scoring.regression import Classification, classify

_SHARE = 4  # part of the free memory of a device that vectors may take at a time
_HOST_BYTES, _MOST_BYTES = (
    2**30,
    2**33,
)  # vectors that are scored together, on a CPU and on a GPU at most
_READ_BYTES = 2**32  # of vectors on their way from the disk
_READERS, _WRITERS = 4, 8


@dataclass
class DeviceScoring:
    """Scores jobs on a device. Each result says which code made it, why, and how many fits
    converged."""

    device: torch.device
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set by another thread: no more layers are begun."""

    @staticmethod
    def texts_of(task: Any) -> list[str]:
        """Every text that a task encodes, in mteb's order, by the task's description: nothing is
        fitted. Without one, by mteb."""
        known: dict[str, int] = {}
        reseed(task)
        try:
            parts_of(
                task,
                lambda texts: np.array(
                    [known.setdefault(text, len(known)) for text in texts], dtype=np.int64
                ),
            )
        except NotDescribed:
            return encoded_texts(task)
        return list(known)

    def score(
        self, context: ScoringContext, task: OpenTask, jobs: Sequence[ScoreJob]
    ) -> Iterator[ScoreResult]:
        """Write and yield the results of jobs of one task as they are done."""
        # a new thread begins on the first GPU
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with on_device:
            reseed(task.task)
            yield from self._run(context, task, parts_of(task.task, task.rows), jobs)

    def facts(self, results: Sequence[ScoreResult]) -> dict[str, Any]:
        """Return facts for the manifest, from all results, those of an earlier run included."""
        left = {
            result.task: result.mteb_reason
            for result in results
            if result.status != "failed" and result.scoring != "device"
        }
        shares_by_task: dict[str, list[float]] = {}
        for result in results:
            if result.converged is not None:
                shares_by_task.setdefault(result.task, []).append(result.converged)
        shares = {task: float(np.mean(shares)) for task, shares in shares_by_task.items()}
        return {"device": str(self.device), "by_mteb": left, "fits_converged": shares}

    def _run(
        self,
        context: ScoringContext,
        task: OpenTask,
        parts: Sequence[Part],
        jobs: Sequence[ScoreJob],
    ) -> Iterator[ScoreResult]:
        clock = time.perf_counter()
        rows = len(task.row_of)
        size = 4 * context.width * rows
        step = max(1, self.room() // size)
        # a result is synced to disk: one after the other they would wait
        with (
            ThreadPoolExecutor(self.readers(size)) as readers,
            ThreadPoolExecutor(_WRITERS) as writers,
        ):
            for some in (jobs[i : i + step] for i in range(0, len(jobs), step)):
                if self.stopped.is_set():
                    return
                vectors = torch.empty(len(some), rows, context.width, device=self.device)
                reasons = list(readers.map(partial(_read, task), some, vectors))
                for job, reason in zip(some, reasons, strict=True):
                    if reason is not None:
                        result = replace(job.undefined(task.task, reason), scoring="device")
                        write_result(job.file(context), result, {})
                        yield result
                if known := [i for i, reason in enumerate(reasons) if reason is None]:
                    found, converged = self._scored(
                        parts, vectors if len(known) == len(some) else vectors[known]
                    )
                    seconds = (time.perf_counter() - clock) / len(known)
                    finish = partial(_finished, context, task.task, converged, seconds)
                    del vectors  # before there are the next ones
                    yield from writers.map(finish, [some[i] for i in known], found)
                clock = time.perf_counter()

    def readers(self, vectors: int) -> int:
        """Return the number of threads that read, by the bytes of a task's vectors at one layer."""
        return max(1, min(_READERS, (os.cpu_count() or 1) // 4, _READ_BYTES // max(1, 2 * vectors)))

    def room(self) -> int:
        """Bytes of vectors that are read and scored together."""
        if self.device.type == "cuda":
            return min(_MOST_BYTES, int(torch.cuda.mem_get_info(self.device)[0] // _SHARE))
        return _HOST_BYTES

    def _scored(
        self, parts: Sequence[Part], vectors: torch.Tensor
    ) -> tuple[list[list[tuple[Part, float, ItemScores | None]]], float | None]:
        """Scores and items of every layer, part by part, and the share of fits that converged, if
        any."""
        out: list[list[tuple[Part, float, ItemScores | None]]] = [[] for _ in vectors]
        shares = []
        for part in parts:
            scores, items, ended = score_problem(vectors, part.problem, self.room() // 2)
            shares += [] if ended is None else [ended]
            for i, score in enumerate(scores.tolist()):
                out[i].append((part, score, items[i] if part.items else None))
        return out, float(np.mean(shares)) if shares else None


def _read(task: OpenTask, job: ScoreJob, out: torch.Tensor) -> str | None:
    """Put a job's vectors into a tensor; return why they cannot be scored, if so."""
    try:
        out.copy_(torch.from_numpy(task.vectors(job)))
    except Undefined as reason:
        return str(reason)
    return None


def _finished(
    context: ScoringContext,
    task: Any,
    converged: float | None,
    seconds: float,
    job: ScoreJob,
    scored: list[tuple[Part, float, ItemScores | None]],
) -> ScoreResult:
    """Write a job's result and its items."""
    scores = []
    items_by_part = {}
    for part, score, items in scored:
        if items is not None and len(items.values) > 1:
            items_by_part[part.split, part.subset] = items
        scores.append(SplitScore(part.split, part.subset, score if np.isfinite(score) else None))
    result = replace(
        job.scored(task, scores), scoring="device", converged=converged, seconds=seconds
    )
    write_result(job.file(context), result, items_by_part)
    return result


def score_problem(
    vectors: torch.Tensor, problem: Problem, memory: int = 2**28
) -> tuple[np.ndarray, list[ItemScores], float | None]:
    """Scores of vectors (layers, texts, D), the items they are made of, and the share of fits that
    converged, if any."""
    if isinstance(problem, Classification):
        found = classify(vectors, problem, memory=memory)
        return found.scores, [ItemScores("mean", row) for row in found.items], found.converged
    if isinstance(problem, Clustering):
        values = cluster(vectors, problem, memory=memory)
        return values.mean(1), [ItemScores("mean", row) for row in values], None
    if isinstance(problem, Pairs):
        scores, kept = pair_scores(vectors, problem)
        return (
            scores,
            [
                ItemScores("ap" if problem.labeled else "spearman", row, problem.gold)
                for row in kept
            ],
            None,
        )
    assert isinstance(problem, Ranking)
    scores, each = rank_scores(vectors, problem)
    return scores, [ItemScores("mean", row) for row in each], None
