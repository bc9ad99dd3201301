"""Scoring on a device: a task's data are read once, and all its layers and readouts are scored
together.

Results are files of their own, next to those that mteb's code would make, and say what made them. A
task that has steps of its own in mteb is scored by mteb.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from layerscope.evaluation.pool import ScoringPool
from layerscope.evaluation.run import ItemScores
from layerscope.evaluation.scoring import (
    ScoreJob,
    ScoringContext,
    Undefined,
    clear_caches,
    encoded_texts,
    items_file,
    job_vectors,
    quiet_mteb,
    read_result,
    task_keys,
    task_rows,
    undefined,
)
from layerscope.evaluation.tasks import TaskSpec, reseed
from layerscope.store import checked
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
    workers: int
    context: ScoringContext = field(init=False)
    stopped: threading.Event = field(
        default_factory=threading.Event
    )  # by another thread: no more is begun

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

    def run(self, context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[dict[str, Any]]:
        """Results of jobs as they are done."""
        self.context = context
        quiet_mteb()
        clear_caches()
        by_task: dict[TaskSpec, list[ScoreJob]] = {}
        for job in jobs:
            by_task.setdefault(job.task, []).append(job)
        for spec, same in by_task.items():
            try:
                yield from self._task(spec, same)
            except NotDescribed as reason:
                with ScoringPool(0 if len(same) == 1 else self.workers) as pool:
                    yield from pool.score(replace(context, left=str(reason)), same)
            except Exception as error:  # reported, not written: the other tasks go on, and the next run tries again
                why = f"{type(error).__name__}: {error}"
                undone = [job for job in same if read_result(job.file(context)) is None]
                yield from ({**job.place, "status": "failed", "reason": why} for job in undone)

    def facts(self, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """For the manifest, from all results, those of an earlier run included."""
        left = {
            r["task"]: r.get("left", "")
            for r in results
            if r["status"] != "failed" and r.get("scoring") != "device"
        }
        ended: dict[str, list[float]] = {}
        for result in results:
            if result.get("converged") is not None:
                ended.setdefault(result["task"], []).append(result["converged"])
        shares = {task: float(np.mean(some)) for task, some in ended.items()}
        return {"device": str(self.device), "by_mteb": left, "fits_converged": shares}

    def _task(self, spec: TaskSpec, jobs: Sequence[ScoreJob]) -> Iterator[dict[str, Any]]:
        clock = time.perf_counter()
        task = spec.load()
        reseed(task)
        parts = parts_of(task, task_rows(self.context, spec))
        facts = {
            "task_type": task.metadata.type,
            "metric": task.metadata.main_score,
            "scoring": "device",
        }
        rows = len(task_keys(self.context, spec))
        size = 4 * self.context.width * rows
        step = max(1, self.room() // size)
        # a result is synced to disk: one after the other they would wait
        with (
            ThreadPoolExecutor(self.readers(size)) as readers,
            ThreadPoolExecutor(_WRITERS) as writers,
        ):
            for some in (jobs[i : i + step] for i in range(0, len(jobs), step)):
                if self.stopped.is_set():
                    return
                vectors = torch.empty(len(some), rows, self.context.width, device=self.device)
                reasons = list(readers.map(self._read, some, vectors))
                for job, reason in zip(some, reasons, strict=True):
                    if reason is not None:
                        yield self._written(job, {**undefined(task, reason), **facts})
                if known := [i for i, reason in enumerate(reasons) if reason is None]:
                    found, converged = self._scored(
                        parts, vectors if len(known) == len(some) else vectors[known]
                    )
                    made = {
                        **facts,
                        "converged": converged,
                        "seconds": (time.perf_counter() - clock) / len(known),
                    }
                    del vectors  # before there are the next ones
                    yield from writers.map(
                        partial(self._finished, made), [some[i] for i in known], found
                    )
                clock = time.perf_counter()

    def _read(self, job: ScoreJob, out: torch.Tensor) -> str | None:
        """Put a job's vectors where they are wanted; returns why they cannot be scored, if so."""
        try:
            out.copy_(torch.from_numpy(job_vectors(self.context, job)))
        except Undefined as reason:
            return str(reason)
        return None

    def readers(self, vectors: int) -> int:
        """How many threads read, by the bytes of a task's vectors at one layer."""
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

    def _finished(
        self,
        facts: dict[str, Any],
        job: ScoreJob,
        scored: list[tuple[Part, float, ItemScores | None]],
    ) -> dict[str, Any]:
        rows = []
        for part, score, items in scored:
            kept = items is not None and len(items.values) > 1
            if kept and items is not None:
                items.save(items_file(job.file(self.context), part.split, part.subset))
            finite = score if np.isfinite(score) else None
            rows.append(
                {"split": part.split, "subset": part.subset, "score": finite, "items": kept}
            )
        if all(row["score"] is None for row in rows):
            why = f"{job.readout.name} at {job.site}: {facts['metric']} is not a number"
            return self._written(
                job, {"status": "undefined", "reason": why, **facts, "scores": rows}
            )
        return self._written(job, {"status": "scored", **facts, "scores": rows})

    def _written(self, job: ScoreJob, result: dict[str, Any]) -> dict[str, Any]:
        whole = {**job.place, **result}
        checked.write_json(job.file(self.context), whole)
        return whole


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
