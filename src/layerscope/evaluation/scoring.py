"""Scoring with mteb's own code, from stored vectors: one task at one layer under one readout."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.evaluation.items import ItemScores, items_of
from layerscope.evaluation.results import ScoreResult, SplitScore, write_result
from layerscope.evaluation.run import texts_file
from layerscope.evaluation.tasks import TaskSpec, reseed
from layerscope.store import checked
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import read_readout

__all__ = [
    "OpenTask",
    "ScoreJob",
    "ScoringContext",
    "Undefined",
    "encoded_texts",
    "open_task",
    "quiet_mteb",
    "require_mteb",
]

_ROWS = 65536  # of vectors that are changed at a time
_QUIET: dict[str, Any] = {"show_progress_bar": False, "co2_tracker": False}


class Undefined(Exception):
    """A readout that gives every text the same vector: there is nothing to score."""


@dataclass(frozen=True)
class ScoringContext:
    """The values that all jobs of a run share. It goes to other processes.

    `spaces` are the parts of the store: template and description as JSON. With `unit_length`
    vectors are scaled after centering. `scoring` names the arithmetic (mteb's or a device's), and
    `mteb_reason` says why a device leaves these jobs to mteb.
    """

    run: Path
    store: Path
    model: str
    revision: str | None
    width: int
    spaces: tuple[tuple[str, str], ...]
    unit_length: bool = False
    scoring: str = "mteb"
    mteb_reason: str = ""


@dataclass(frozen=True)
class ScoreJob:
    """One task at one site under one readout. `data` is the fingerprint of the task's data."""

    task: TaskSpec
    data: str
    readout: Readout
    site: str
    layer: int

    def file(self, context: ScoringContext) -> Path:
        """Return the file of its result."""
        settings = [asdict(self.task), self.data, self.readout.name, self.site, context.scoring]
        key = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]
        return context.run / "results" / self.task.name / f"{key}{checked.ARRAYS}"

    def undefined(self, task: Any, reason: str) -> ScoreResult:
        """Return the result of a job that has no score."""
        metadata = task.metadata
        scores = tuple(
            SplitScore(split, subset) for split in task.eval_splits for subset in task.hf_subsets
        )
        place = (self.task.name, self.readout, self.site, self.layer)
        return ScoreResult(*place, "undefined", reason, metadata.type, metadata.main_score, scores)

    def scored(self, task: Any, scores: Sequence[SplitScore]) -> ScoreResult:
        """Return the result of a job with its scores, not all of which may be defined."""
        result = replace(self.undefined(task, ""), scores=tuple(scores))
        if any(score.score is not None for score in scores):
            return replace(result, status="scored")
        reason = f"{self.readout.name} at {self.site}: {result.metric} is not a number"
        return replace(result, reason=reason)

    def failed(self, error: Exception) -> ScoreResult:
        """Return the result of a job that failed.

        It is not written: a failure may pass (memory, a file in use), and the next run tries again.
        """
        place = (self.task.name, self.readout, self.site, self.layer)
        return ScoreResult(*place, "failed", reason_of(error))


@dataclass(frozen=True)
class OpenTask:
    """A task with its data, and the vectors of its texts in the store."""

    task: Any
    row_of: dict[bytes, int]
    spaces: dict[str, VectorSpace]
    unit_length: bool

    def rows(self, texts: Sequence[str]) -> np.ndarray:
        """Return the rows of texts in the task's vectors."""
        return np.array([self.row_of[text_key(text)] for text in texts], dtype=np.int64)

    def vectors(self, job: ScoreJob) -> np.ndarray:
        """Return the vectors of all texts, centered if asked; `Undefined` if all are the same."""
        space = self.spaces[job.readout.template]
        vectors = read_readout(space, list(self.row_of), job.readout, job.site)
        if is_constant(vectors):
            raise Undefined(f"{job.readout.name} at {job.site} gives every text the same vector")
        if job.readout.centering == "corpus":
            mean = vectors.mean(0, dtype=np.float64)
            np.subtract(vectors, mean, out=vectors, casting="same_kind")
        if self.unit_length:
            for i in range(0, len(vectors), _ROWS):  # in parts: a task may have a million texts
                rows = vectors[i : i + _ROWS]
                rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
        return vectors


def open_task(context: ScoringContext, spec: TaskSpec) -> OpenTask:
    """Load a task, and open the vectors of its texts."""
    keys = checked.read_arrays(texts_file(context.run, spec.name))["keys"]
    store = VectorStore(context.store, size_limit=None)
    spaces = {template: store.space(json.loads(text)) for template, text in context.spaces}
    row_of = {bytes(key): i for i, key in enumerate(keys)}
    return OpenTask(spec.load().task, row_of, spaces, context.unit_length)


def is_constant(vectors: np.ndarray) -> bool:
    """Return whether all rows equal the first one up to rounding, looking at a few at a time."""
    reference = vectors[:1]
    step = 256
    limit = 1e-6 * max(1e-30, float(np.abs(reference).max()))
    return all(
        float(np.abs(vectors[i : i + step] - reference).max()) <= limit
        for i in range(0, len(vectors), step)
    )


def require_mteb() -> None:
    """Raise an error that names the extra where mteb is not installed."""
    import layerscope.evaluation.mteb_models  # noqa: F401 - its import says which extra is missing


def quiet_mteb() -> None:
    """Silence mteb and the libraries it uses: a run has its own progress bar."""
    for name in ("mteb", "datasets", "sentence_transformers", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    import datasets
    from mteb.cache import result_cache

    if os.name != "nt":
        # With polars, which mteb loads, a process that waits would not notice Ctrl-C.
        signal.siginterrupt(signal.SIGINT, True)
    datasets.disable_progress_bars()
    # mteb looks the versions of five packages up for every result that it writes, a sixth of the
    # time of a small task.
    versions = getattr(result_cache, "_get_package_versions", None)
    if versions is not None and not hasattr(versions, "cache_info"):
        result_cache._get_package_versions = cache(versions)


def encoded_texts(task: Any) -> list[str]:
    """Return every text that a task encodes, by scoring it once with a model that records them."""
    import mteb

    from layerscope.evaluation.mteb_models import TextCollector

    collector = TextCollector()
    reseed(task)
    mteb.evaluate(collector, task, cache=None, **_QUIET)
    return list(collector.texts)


def reason_of(error: Exception) -> str:
    """Return why something failed, with the kind of error where it is not layerscope's own."""
    return str(error) if isinstance(error, LayerscopeError) else f"{type(error).__name__}: {error}"


def score_jobs(
    context: ScoringContext,
    jobs: Sequence[ScoreJob],
    load: Callable[[ScoringContext, TaskSpec], OpenTask] = open_task,
) -> Iterator[ScoreResult]:
    """Score jobs of one task, and write and yield their results. A failure is a result too."""
    try:
        task = load(context, jobs[0].task)
    except Exception as error:
        yield from (job.failed(error) for job in jobs)
        return
    for job in jobs:
        clock = time.perf_counter()
        try:
            result, items = _score(context, task, job)
        except Exception as error:
            yield job.failed(error)
            continue
        result = replace(
            result, mteb_reason=context.mteb_reason, seconds=time.perf_counter() - clock
        )
        write_result(job.file(context), result, items)
        yield result


def _score(
    context: ScoringContext, opened: OpenTask, job: ScoreJob
) -> tuple[ScoreResult, dict[tuple[str, str], ItemScores]]:
    """Return mteb's scores of a job's vectors, and the per-item contributions to them."""
    import mteb

    from layerscope.evaluation.mteb_models import LayerView, model_meta

    task = opened.task
    try:
        vectors = opened.vectors(job)
    except Undefined as problem:
        return job.undefined(task, str(problem)), {}
    reseed(task)
    # mteb's cache does not know which data a task was given: without their fingerprint two would
    # share a file.
    experiment = {
        "layer": job.layer,
        **job.readout.columns,
        "unit": context.unit_length,
        "data": job.data[:12],
    }
    meta = model_meta(context.model, context.revision, context.width, experiment)
    view = LayerView(lambda texts: vectors[opened.rows(texts)], meta)
    with tempfile.TemporaryDirectory(prefix="layerscope-") as folder:
        results = mteb.evaluate(
            view,
            task,
            cache=mteb.ResultCache(context.run / "mteb"),
            overwrite_strategy="always",
            prediction_folder=folder,
            encode_kwargs={"batch_size": 4096, "show_progress_bar": False},
            **_QUIET,
        )
        file = Path(folder) / task.prediction_file_name
        predictions = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    scores = []
    items_by_split = {}
    for split, entries in results.task_results[0].scores.items():
        for entry in entries:
            subset = entry["hf_subset"]
            score = float(entry["main_score"])
            scores.append(SplitScore(split, subset, score if math.isfinite(score) else None))
            items = items_of(task, split, entry, predictions.get(subset, {}).get(split))
            if items is not None:
                items_by_split[split, subset] = items
    return job.scored(task, scores), items_by_split
