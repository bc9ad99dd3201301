"""Scoring of tasks from stored vectors: with mteb's own code, in processes with one BLAS thread
each, or by a scorer of another package on a device."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from layerscope import accelerator
from layerscope.core.plugins import entry_points
from layerscope.core.readout import Readout
from layerscope.data.workers import children_start
from layerscope.errors import LayerscopeError
from layerscope.evaluation.results import ItemScores, ScoreResult, SplitScore, write_result
from layerscope.evaluation.run import texts_file
from layerscope.evaluation.tasks import TaskSpec, reseed
from layerscope.extras import missing
from layerscope.store import checked
from layerscope.vectors import VectorSpace, text_key
from layerscope.vectors.encode import read_readout

__all__ = [
    "LeftToMteb",
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
_PARTS = 24  # at least, of the jobs of a task
_QUIET: dict[str, Any] = {"show_progress_bar": False, "co2_tracker": False}


class Undefined(Exception):
    """A readout that gives every text the same vector: there is nothing to score."""


@dataclass(frozen=True)
class ScoringContext:
    """The values that all jobs of a run share. It goes to other processes.

    `spaces` are the folders of the vectors under each template. With `unit_length` vectors are
    scaled after centering. `scoring` names the arithmetic (mteb's or a device's), and `mteb_reason`
    says why a device leaves these jobs to mteb.
    """

    run: Path
    model: str
    revision: str | None
    width: int
    spaces: tuple[tuple[str, Path], ...]
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
        result = self.failed(reason)
        return replace(
            result,
            status="undefined",
            task_type=metadata.type,
            metric=metadata.main_score,
            scores=scores,
        )

    def scored(self, task: Any, scores: Sequence[SplitScore]) -> ScoreResult:
        """Return the result of a job with its scores, not all of which may be defined."""
        reason = f"{self.readout.name} at {self.site}: {task.metadata.main_score} is not a number"
        result = replace(self.undefined(task, reason), scores=tuple(scores))
        if any(score.score is not None for score in scores):
            return replace(result, status="scored", reason="")
        return result

    def failed(self, reason: str) -> ScoreResult:
        """Return the result of a job that failed.

        It is not written: a failure may pass (memory, a file in use), and the next run tries again.
        """
        return ScoreResult(self.task.name, self.readout, self.site, self.layer, "failed", reason)


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
            for rows in _parts(vectors, _ROWS):
                rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
        return vectors


def is_constant(vectors: np.ndarray) -> bool:
    """Return True if all rows equal the first one up to rounding."""
    limit = 1e-6 * max(1e-30, float(np.abs(vectors[0]).max()))
    return all(np.abs(part - vectors[0]).max() <= limit for part in _parts(vectors, 256))


def _parts(vectors: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield views of a few rows each: a task may have a million texts."""
    return (vectors[i : i + size] for i in range(0, len(vectors), size))


def write_keys(run: Path, task: str, texts: Sequence[str]) -> None:
    """Write the keys of a task's texts into a run's folder."""
    keys = np.frombuffer(b"".join(map(text_key, texts)), dtype=np.uint8)
    checked.write_arrays(texts_file(run, task), {"keys": keys.reshape(-1, 32)})


def open_task(context: ScoringContext, spec: TaskSpec) -> OpenTask:
    """Load a task, and open the vectors of its texts."""
    keys = checked.read_arrays(texts_file(context.run, spec.name))["keys"]
    spaces = {template: VectorSpace(folder) for template, folder in context.spaces}
    row_of = {bytes(key): i for i, key in enumerate(keys)}
    return OpenTask(spec.load().task, row_of, spaces, context.unit_length)


_open_once = lru_cache(maxsize=1)(open_task)  # a process scores many layers of a task


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


@contextmanager
def listed_columns() -> Iterator[None]:
    """Keep the columns of datasets as lists once they are read.

    `datasets` looks each value up in its table anew, and mteb reads labels and texts one by one:
    that would take most of the time of scoring one layer on a clustering or classification task.
    """
    from datasets.arrow_dataset import Column

    look_up = Column.__getitem__
    iterate = Column.__iter__

    def get(column: Any, key: Any) -> Any:
        if not isinstance(key, int | np.integer | slice):
            return look_up(column, key)
        if not hasattr(column, "_values"):
            column._values = look_up(column, slice(None))
        return column._values[key]

    Column.__getitem__ = get
    Column.__iter__ = lambda column: iter(get(column, slice(None)))
    try:
        yield
    finally:
        Column.__getitem__ = look_up
        Column.__iter__ = iterate


def encoded_texts(task: Any) -> list[str]:
    """Return every text that a task encodes, by scoring it once with a model that records them."""
    import mteb

    from layerscope.evaluation.mteb_models import TextCollector

    collector = TextCollector()
    reseed(task)
    with listed_columns():
        mteb.evaluate(collector, task, cache=None, **_QUIET)
    return list(collector.texts)


def reason_of(error: Exception) -> str:
    """Return why something failed, with the kind of error where it is not layerscope's own."""
    return str(error) if isinstance(error, LayerscopeError) else f"{type(error).__name__}: {error}"


def score_jobs(context: ScoringContext, jobs: Sequence[ScoreJob]) -> Iterator[ScoreResult]:
    """Score jobs of one task, and write and yield their results. A failure is a result too."""
    try:
        task = _open_once(context, jobs[0].task)
    except Exception as error:
        yield from (job.failed(reason_of(error)) for job in jobs)
        return
    for job in jobs:
        clock = time.perf_counter()
        try:
            with listed_columns():
                result, items = _score(context, task, job)
        except Exception as error:
            yield job.failed(reason_of(error))
            continue
        seconds = time.perf_counter() - clock
        result = replace(result, mteb_reason=context.mteb_reason, seconds=seconds)
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


# Items


def items_of(task: Any, split: str, entry: dict[str, Any], predictions: Any) -> ItemScores | None:
    """Return the items of one split and subset; None where the score is not made of items (then it
    has no paired interval).

    `entry` is mteb's result of that split and subset.
    """
    task_type = task.metadata.type
    metric = task.metadata.main_score
    if task_type == "Clustering":  # one value per set or draw, as mteb reports them
        values = entry.get("v_measures")
        if isinstance(values, dict):
            values = [value for level in values.values() for value in level]
        return ItemScores("mean", _numbers(values)) if values and len(values) > 1 else None
    if not predictions:
        return None
    data = task.dataset
    data = data.get(entry["hf_subset"], data)[split]
    if task_type == "STS" and "spearman" in metric:
        scores = _numbers(predictions["cosine_scores"])
        return ItemScores("spearman", scores, _numbers(data["score"]))
    if task_type == "PairClassification" and metric.endswith("ap"):
        return _labeled_pairs(_numbers(data[task.label_column_name]).ravel(), metric, predictions)
    if task_type == "Classification" and metric == "accuracy":
        gold = np.array(data[task.label_column_name])
        right = [np.array(labels) == gold for labels in predictions if len(labels) == len(gold)]
        return ItemScores("mean", np.mean(right, axis=0)) if right else None
    if task_type == "Reranking" and metric.startswith("map"):
        return _ranked(data["relevant_docs"], predictions)
    return None


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def _labeled_pairs(labels: np.ndarray, metric: str, predictions: Any) -> ItemScores | None:
    """Return the pairs' scores, by the best of several measures of similarity where mteb takes
    it."""
    signs = {"cosine_scores": 1}
    if metric.startswith("max_"):
        signs |= dict.fromkeys(("similarity_scores", "dot_scores"), 1)
        signs |= dict.fromkeys(("euclidean_distances", "manhattan_distances"), -1)
    rankings = [
        ItemScores("ap", sign * _numbers(predictions[name]), labels)
        for name, sign in signs.items()
        if len(predictions.get(name, ())) == len(labels)
    ]
    return max(rankings, key=lambda items: items.score(), default=None)


def _ranked(relevant: Any, predictions: Any) -> ItemScores | None:
    """Return the average precision of each query."""
    values = []
    for query, scores in sorted(predictions.items()):
        targets = {doc for doc, grade in relevant.get(query, {}).items() if grade > 0}
        if targets:
            # equal scores: as mteb orders them
            ranked = sorted(scores, key=lambda doc: (scores[doc], doc), reverse=True)
            is_hit = np.array([doc in targets for doc in ranked])
            precision = np.cumsum(is_hit) / np.arange(1, len(ranked) + 1)
            values.append(float(precision[is_hit].sum()) / len(targets))
    return ItemScores("mean", np.array(values)) if len(values) > 1 else None


# Processes


@contextmanager
def scoring_pool(workers: int) -> Iterator[ProcessPoolExecutor | None]:
    """Open processes that score; None for 0 workers. An error or Ctrl-C ends what they are doing:
    a result is written whole, so none is waited for.

    They are spawned, not forked: a fork of a process that has used threads may hang.
    """
    if not workers:
        yield None
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _start)
    try:
        yield pool
    except BaseException:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _start() -> None:
    """Prepare a process that scores; it ends with the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then ends them
    parent = multiprocessing.parent_process()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    quiet_mteb()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _score_batch(context: ScoringContext, jobs: Sequence[ScoreJob]) -> list[ScoreResult]:
    return list(score_jobs(context, jobs))


def score_by_mteb(
    pool: ProcessPoolExecutor | None, context: ScoringContext, jobs: Sequence[ScoreJob]
) -> Iterator[ScoreResult]:
    """Yield the results of jobs of one task as they are done: by a pool, or in this process."""
    if pool is None or len(jobs) == 1:  # one job is not worth a process
        from threadpoolctl import threadpool_limits

        quiet_mteb()
        try:
            with threadpool_limits(1):
                yield from score_jobs(context, jobs)
        finally:
            _open_once.cache_clear()
        return
    # small parts: no process waits long for the others at the end
    size = max(1, min(8, len(jobs) // _PARTS))
    try:
        with children_start():
            futures = [
                pool.submit(_score_batch, context, jobs[i : i + size])
                for i in range(0, len(jobs), size)
            ]
        for future in as_completed(futures):
            yield from future.result()
    except BrokenProcessPool as error:
        raise LayerscopeError(
            "a scoring process died, most likely for lack of memory. What was scored is kept: "
            "run the same command again, with fewer scoring_workers=."
        ) from error


# Devices


class LeftToMteb(Exception):
    """A task whose scores only mteb can compute; the message says why."""


class Scorer(Protocol):
    """Scores all layers and readouts of a task together, on a device. Another package offers one
    with an entry point of the group `layerscope.scorers`."""

    stopped: threading.Event
    """Set by another thread: no more layers are begun."""

    def __init__(self, device: torch.device) -> None: ...

    @staticmethod
    def texts_of(task: Any) -> list[str]:
        """Return every text that a loaded task encodes, in mteb's order."""

    def score(
        self, context: ScoringContext, task: OpenTask, jobs: Sequence[ScoreJob]
    ) -> Iterator[ScoreResult]:
        """Write and yield the results of jobs of one task; raise `LeftToMteb` before the first."""

    def facts(self, results: Sequence[ScoreResult]) -> dict[str, Any]:
        """Return facts about all results, for the manifest."""


def find_scorer(required: bool = False) -> type[Scorer] | None:
    """Return the installed scorer, None if there is none; an error where one is required, or does
    not fit this version."""
    for point in entry_points("layerscope.scorers"):
        try:
            scorer: type[Scorer] = point.load()
        except ImportError:
            continue
        accelerator.installed()
        return scorer
    if required:
        raise missing("device scoring")
    return None
