"""Score tasks on a device: a task's data are read once, and all layers and readouts are scored
together.

Results are separate files next to mteb's and record that this code made them. mteb scores tasks
that override its base classes.
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
from typing import Any, Literal

import numpy as np
import torch

from layerscope.evaluation.results import ItemScores, ScoreResult, SplitScore, write_result
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

_HOST_BYTES = 2**30  # of vectors that are scored together on a CPU
_MOST_BYTES = 2**33  # of vectors that are scored together on a GPU, at most
_SHARE = 4  # which are at most a fourth of its free memory
_READ_BYTES = 2**32  # of vectors that are read from the disk at once
_READERS = 4
_WRITERS = 8


@dataclass
class DeviceScoring:
    """Scores jobs on a device; each result records its code and the share of fits that
    converged."""

    device: torch.device
    stopped: threading.Event = field(default_factory=threading.Event)
    """Set by another thread to start no more layers."""

    @staticmethod
    def texts_of(task: Any) -> list[str]:
        """Return every text that a task encodes, in mteb's order, from its description without
        fits; from mteb if it has none."""
        place_of: dict[str, int] = {}
        reseed(task)
        try:
            parts_of(
                task,
                lambda texts: np.array(
                    [place_of.setdefault(text, len(place_of)) for text in texts], dtype=np.int64
                ),
            )
        except NotDescribed:
            return encoded_texts(task)
        return list(place_of)

    def score(
        self, context: ScoringContext, task: OpenTask, jobs: Sequence[ScoreJob]
    ) -> Iterator[ScoreResult]:
        """Write and yield the results of jobs of one task as they are done."""
        # the current GPU of a new thread is the first one
        on_device = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with on_device:
            reseed(task.task)
            yield from self._run(context, task, parts_of(task.task, task.rows), jobs)

    def facts(self, results: Sequence[ScoreResult]) -> dict[str, Any]:
        """Return facts for the manifest from all results, including those of an earlier run."""
        reasons = {
            result.task: result.mteb_reason
            for result in results
            if result.status != "failed" and result.scoring != "device"
        }
        shares_by_task: dict[str, list[float]] = {}
        for result in results:
            if result.converged is not None:
                shares_by_task.setdefault(result.task, []).append(result.converged)
        shares = {task: float(np.mean(shares)) for task, shares in shares_by_task.items()}
        return {"device": str(self.device), "by_mteb": reasons, "fits_converged": shares}

    def _run(
        self,
        context: ScoringContext,
        task: OpenTask,
        subsets: Sequence[Part],
        jobs: Sequence[ScoreJob],
    ) -> Iterator[ScoreResult]:
        clock = time.perf_counter()
        rows = len(task.row_of)
        size = 4 * context.width * rows
        step = max(1, self.room() // size)
        # several threads, since each result is synced to disk
        with (
            ThreadPoolExecutor(self.readers(size)) as readers,
            ThreadPoolExecutor(_WRITERS) as writers,
        ):
            for batch in (jobs[i : i + step] for i in range(0, len(jobs), step)):
                if self.stopped.is_set():
                    return
                vectors = torch.empty(len(batch), rows, context.width, device=self.device)
                reasons = list(readers.map(partial(_read, task), batch, vectors))
                for job, reason in zip(batch, reasons, strict=True):
                    if reason is not None:
                        result = replace(job.undefined(task.task, reason), scoring="device")
                        write_result(job.file(context), result, {})
                        yield result
                if readable := [i for i, reason in enumerate(reasons) if reason is None]:
                    scored, converged = self._scored(
                        subsets, vectors if len(readable) == len(batch) else vectors[readable]
                    )
                    seconds = (time.perf_counter() - clock) / len(readable)
                    finish = partial(_finished, context, task.task, converged, seconds)
                    del vectors  # free the memory for the next ones
                    yield from writers.map(finish, [batch[i] for i in readable], scored)
                clock = time.perf_counter()

    def readers(self, vectors: int) -> int:
        """Return the number of threads that read, by the bytes of a task's vectors at one layer."""
        return max(1, min(_READERS, (os.cpu_count() or 1) // 4, _READ_BYTES // max(1, 2 * vectors)))

    def room(self) -> int:
        """Return the bytes of vectors that are read and scored together."""
        if self.device.type == "cuda":
            return min(_MOST_BYTES, int(torch.cuda.mem_get_info(self.device)[0] // _SHARE))
        return _HOST_BYTES

    def _scored(
        self, subsets: Sequence[Part], vectors: torch.Tensor
    ) -> tuple[list[list[tuple[Part, float, ItemScores | None]]], float | None]:
        """Return scores and items of every layer for each part, and the share of fits that
        converged, if any."""
        out: list[list[tuple[Part, float, ItemScores | None]]] = [[] for _ in vectors]
        shares = []
        for subset in subsets:
            scores, items, ended = score_problem(vectors, subset.problem, self.room() // 2)
            shares += [] if ended is None else [ended]
            for i, score in enumerate(scores.tolist()):
                out[i].append((subset, score, items[i] if subset.items else None))
        return out, float(np.mean(shares)) if shares else None


def _read(task: OpenTask, job: ScoreJob, out: torch.Tensor) -> str | None:
    """Copy a job's vectors into a tensor; return the reason if they cannot be scored."""
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
    for subset, score, items in scored:
        if items is not None and len(items.values) > 1:
            items_by_part[subset.split, subset.subset] = items
        value = score if np.isfinite(score) else None
        scores.append(SplitScore(subset.split, subset.subset, value))
    result = replace(
        job.scored(task, scores), scoring="device", converged=converged, seconds=seconds
    )
    write_result(job.file(context), result, items_by_part)
    return result


def score_problem(
    vectors: torch.Tensor, problem: Problem, memory: int = 2**28
) -> tuple[np.ndarray, list[ItemScores], float | None]:
    """Score vectors (layers, texts, D); return scores, the items behind them, and the share of fits
    that converged, if any."""
    if isinstance(problem, Classification):
        classified = classify(vectors, problem, memory=memory)
        items = [ItemScores("mean", row) for row in classified.items]
        return classified.scores, items, classified.converged
    if isinstance(problem, Clustering):
        values = cluster(vectors, problem, memory=memory)
        return values.mean(1), [ItemScores("mean", row) for row in values], None
    if isinstance(problem, Pairs):
        scores, values = pair_scores(vectors, problem)
        kind: Literal["ap", "spearman"] = "ap" if problem.labeled else "spearman"
        return scores, [ItemScores(kind, row, problem.gold) for row in values], None
    assert isinstance(problem, Ranking)
    scores, values = rank_scores(vectors, problem)
    return scores, [ItemScores("mean", row) for row in values], None
