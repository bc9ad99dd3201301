"""Scoring with mteb's own code, from stored vectors: which texts the tasks need, and the score of
one layer under one readout.

A `ScoreJob` is small and picklable. A result is one JSON file, written whole, so that a run stopped
anywhere resumes without repeating finished work.
"""

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.evaluation.plan import task_config
from layerscope.evaluation.run import ItemScores, items_of, texts_file
from layerscope.evaluation.tasks import TaskSpec, reseed
from layerscope.evaluation.tasks.facts import refuse_constant
from layerscope.models.source import files_sha256
from layerscope.progress import Progress
from layerscope.store import checked
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import read_readout

__all__ = [
    "ScoreJob",
    "ScoringContext",
    "Undefined",
    "clear_caches",
    "encoded_texts",
    "items_file",
    "job_vectors",
    "quiet_mteb",
    "read_result",
    "require_mteb",
    "task_keys",
    "task_rows",
    "undefined",
]

_ROWS = 65536  # of vectors that are changed at a time
_QUIET: dict[str, Any] = {"show_progress_bar": False, "co2_tracker": False}


@dataclass(frozen=True)
class ScoringContext:
    """What all jobs of a run share: where vectors and results are, and the model's name."""

    run: str
    store: str
    model: str
    revision: str | None
    width: int
    spaces: tuple[tuple[str, str, str], ...]  # (template, description as JSON, dtype)
    unit: bool = False  # vectors scaled to length 1, after centering
    scoring: str = "mteb"  # whose arithmetic makes the scores: mteb's, or ours on a device
    left: str = ""  # why a run on a device leaves these jobs to mteb


@lru_cache(maxsize=256)
def task_files(spec: TaskSpec) -> str | None:
    """A fingerprint of a task's local files: scores of other content are other scores. Every job of
    the task asks for it."""
    if spec.path is None:
        return None
    return files_sha256(file for file in Path(spec.path).rglob("*") if file.is_file())


@dataclass(frozen=True)
class ScoreJob:
    """One task at one site under one readout."""

    task: TaskSpec
    readout: Readout
    site: str
    layer: int

    @property
    def key(self) -> str:
        """A file name for its result."""
        text = json.dumps(
            [task_config(self.task), task_files(self.task), self.readout.name, self.site],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def file(self, context: ScoringContext) -> Path:
        """Where its result is, once it is done."""
        own = "" if context.scoring == "mteb" else f"-{context.scoring}"
        return Path(context.run) / "results" / self.task.name / f"{self.key}{own}.json"

    @property
    def place(self) -> dict[str, Any]:
        """What every result begins with."""
        return {
            "task": self.task.name,
            "layer": self.layer,
            "site": self.site,
            **self.readout.columns,
        }


@lru_cache(maxsize=1)
def load_task(spec: TaskSpec) -> Any:
    """A task with its data; cached until another task comes."""
    return spec.load()


@lru_cache(maxsize=1)
def _fingerprint(spec: TaskSpec) -> str:
    return str(spec.facts(load_task(spec))["fingerprint"])


@lru_cache(maxsize=8)
def _space(store: str, description: str, dtype: str) -> VectorSpace:
    return VectorStore(Path(store), size_limit=None).space(json.loads(description), dtype=dtype)


@lru_cache(maxsize=2)
def _task_keys(file: Path) -> list[bytes]:
    return [bytes(row) for row in checked.read_arrays(file)["keys"]]


def clear_caches() -> None:
    """Drop cached tasks and vectors: another run in this process may have other data under the same
    names."""
    for cached in (load_task, _fingerprint, _space, _task_keys, task_files):
        cached.cache_clear()


class Undefined(Exception):
    """A readout that gives every text the same vector: there is nothing to score."""


def task_keys(context: ScoringContext, task: TaskSpec) -> list[bytes]:
    """The keys of a task's texts, in the order of its vectors."""
    return _task_keys(texts_file(context.run, task.name))


def job_vectors(context: ScoringContext, job: ScoreJob) -> np.ndarray:
    """The vectors of all texts of a job's task, centered if asked; `Undefined` if they are all the
    same."""
    description, dtype = next(
        (d, t) for template, d, t in context.spaces if template == job.readout.template
    )
    vectors = read_readout(
        _space(context.store, description, dtype),
        task_keys(context, job.task),
        job.readout,
        job.site,
    )
    if _alike(vectors):
        raise Undefined(f"{job.readout.name} at {job.site} gives every text the same vector")
    if job.readout.centering == "corpus":
        mean = vectors.mean(0, dtype=np.float64)
        np.subtract(vectors, mean, out=vectors, casting="same_kind")
    if context.unit:
        for i in range(0, len(vectors), _ROWS):  # in parts: a task may have a million texts
            part = vectors[i : i + _ROWS]
            part /= np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-30)
    return vectors


def _alike(vectors: np.ndarray) -> bool:
    """Whether all rows are the first one, up to rounding. Few rows tell where they are not."""
    first, step = vectors[:1], 256
    most = 1e-6 * max(1e-30, float(np.abs(first).max()))
    return all(
        float(np.abs(vectors[i : i + step] - first).max()) <= most
        for i in range(0, len(vectors), step)
    )


def task_rows(context: ScoringContext, task: TaskSpec) -> Callable[[Sequence[str]], np.ndarray]:
    """From texts of a task to their rows in its vectors."""
    row = {key: i for i, key in enumerate(task_keys(context, task))}
    return lambda texts: np.array([row[text_key(text)] for text in texts], dtype=np.int64)


def _lookup(context: ScoringContext, job: ScoreJob) -> Callable[[list[str]], np.ndarray]:
    """The vectors of texts for a job."""
    vectors, rows = job_vectors(context, job), task_rows(context, job.task)
    return lambda texts: vectors[rows(texts)]


def require_mteb() -> None:
    """Say that mteb is missing before anything long begins."""
    import layerscope.evaluation.mteb_models  # noqa: F401 - its import says which extra is missing


def quiet_mteb() -> None:
    """mteb and what it uses talk a lot; a run has its own progress bar."""
    for name in ("mteb", "datasets", "sentence_transformers", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    import datasets
    from mteb.cache import result_cache

    if os.name != "nt":
        signal.siginterrupt(
            signal.SIGINT, True
        )  # with polars, which mteb loads, whoever waits would not hear of Ctrl-C
    datasets.disable_progress_bars()
    # mteb looks the versions of five packages up for every result that it writes, a sixth of the
    # time of a small task
    versions = getattr(result_cache, "_get_package_versions", None)
    if versions is not None and not hasattr(versions, "cache_info"):
        result_cache._get_package_versions = cache(versions)


def encoded_texts(task: Any) -> list[str]:
    """Every text that a task encodes, for which it is scored once with a model that only records
    them."""
    import mteb

    from layerscope.evaluation.mteb_models import TextCollector

    collector = TextCollector()
    reseed(task)
    mteb.evaluate(collector, task, cache=None, **_QUIET)
    return list(collector.texts)


def reason_of(error: Exception) -> str:
    """Why something failed: our own errors say it without their kind."""
    return str(error) if isinstance(error, LayerscopeError) else f"{type(error).__name__}: {error}"


def collect(
    specs: Sequence[TaskSpec],
    run: Path,
    bar: Progress,
    texts_of: Callable[[Any], list[str]] = encoded_texts,
) -> tuple[dict[str, list[str]], dict[str, Any], list[dict[str, str]]]:
    """The texts that each task encodes, and facts of each task.

    Last come the tasks that could not be read, with the reason.
    """
    quiet_mteb()
    bar.begin("reading tasks|tasks", len(specs))
    texts: dict[str, list[str]] = {}
    facts: dict[str, Any] = {}
    failed: list[dict[str, str]] = []
    for spec in specs:
        try:
            task = spec.load()
            refuse_constant(task)
            texts[spec.name], facts[spec.name] = texts_of(task), spec.facts(task)
        except Exception as error:
            failed.append({"task": spec.name, "reason": reason_of(error)})
            continue
        finally:
            bar.advance(1)
        keys = np.frombuffer(
            b"".join(text_key(t) for t in texts[spec.name]), dtype=np.uint8
        ).reshape(-1, 32)
        checked.write_arrays(texts_file(run, spec.name), {"keys": keys})
    if not texts:
        raise LayerscopeError(f"no task could be read: {failed[0]['task']}: {failed[0]['reason']}")
    return texts, facts, failed


def run_job(context: ScoringContext, job: ScoreJob) -> dict[str, Any]:
    """Score a job, write its result, and return it. A failure is a result too: the others go on."""
    file = job.file(context)
    stored = read_result(file)
    if stored is not None:
        return stored
    base, clock = job.place, time.perf_counter()
    try:
        result = {**base, **_score(context, job)}
        if context.left:
            result |= {"scoring": "mteb", "left": context.left}
        result["seconds"] = time.perf_counter() - clock
    except Exception as error:
        # a failure may pass (memory, a file in use): it is reported, not written, so that the next
        # run tries again
        return {**base, "status": "failed", "reason": f"{type(error).__name__}: {error}"}
    checked.write_json(file, result)
    return result


def read_result(file: Path) -> dict[str, Any] | None:
    """The result that a job wrote; None where there is none, where it is damaged, or where what
    belongs to it is gone."""
    result = checked.read_or_discard(file, checked.read_checked_json)
    for row in (result or {}).get("scores", ()):
        items = items_file(file, row["split"], row["subset"])
        if row.get("items") and checked.read_or_discard(items, ItemScores.load) is None:
            return None
    return result


def _score(context: ScoringContext, job: ScoreJob) -> dict[str, Any]:
    import mteb

    from layerscope.evaluation.mteb_models import LayerView, model_meta

    task = load_task(job.task)
    facts = {"task_type": task.metadata.type, "metric": task.metadata.main_score}
    try:
        lookup = _lookup(context, job)
    except Undefined as reason:
        return {**undefined(task, str(reason)), **facts}
    reseed(task)
    # mteb's cache does not know which data a task was given: without their fingerprint two would
    # share a file
    experiment = {
        "layer": job.layer,
        **job.readout.columns,
        "unit": context.unit,
        "data": _fingerprint(job.task)[:12],
    }
    view = LayerView(lookup, model_meta(context.model, context.revision, context.width, experiment))
    cache = mteb.ResultCache(Path(context.run) / "mteb")
    with tempfile.TemporaryDirectory(prefix="layerscope-") as folder:
        results = mteb.evaluate(
            view,
            task,
            cache=cache,
            overwrite_strategy="always",
            prediction_folder=folder,
            encode_kwargs={"batch_size": 4096, "show_progress_bar": False},
            **_QUIET,
        )
        result = results.task_results[0]
        file = Path(folder) / task.prediction_file_name
        predictions = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    rows = []
    for split, entries in result.scores.items():
        for entry in entries:
            score = float(entry["main_score"])
            row = {
                "split": split,
                "subset": entry["hf_subset"],
                "score": score if math.isfinite(score) else None,
            }
            items = items_of(task, split, entry, predictions.get(entry["hf_subset"], {}).get(split))
            if items is not None:
                items.save(items_file(job.file(context), split, entry["hf_subset"]))
            rows.append({**row, "items": items is not None})
    if all(row["score"] is None for row in rows):
        why = f"{job.readout.name} at {job.site}: mteb's {facts['metric']} is not a number"
        return {"status": "undefined", "reason": why, **facts, "scores": rows}
    made = {
        "dataset_revision": result.dataset_revision,
        "mteb_version": result.mteb_version,
        "scores": rows,
    }
    return {"status": "scored", **facts, **made}


def undefined(task: Any, reason: str) -> dict[str, Any]:
    """The result of a job that has no score."""
    parts = product(task.eval_splits, task.hf_subsets)
    unscored = [{"split": split, "subset": subset, "score": None} for split, subset in parts]
    return {"status": "undefined", "reason": reason, "scores": unscored}


def items_file(result: Path, split: str, subset: str) -> Path:
    """Where the per-item contributions are that belong to a job's result."""
    return result.with_name(f"{result.stem}.{split}.{subset}{checked.ARRAYS}")


def read_items(
    context: ScoringContext, job: ScoreJob, split: str, subset: str
) -> ItemScores | None:
    """The per-item contributions of a job, or None where its task has none."""
    file = items_file(job.file(context), split, subset)
    return ItemScores.load(file) if file.exists() else None
