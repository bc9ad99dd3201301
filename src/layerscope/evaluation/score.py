"""Scoring one task at one layer under one readout, with mteb's own code, from stored vectors.

A `Job` is small and picklable; worker processes (one BLAS thread each) load a task once and then score many layers of it. A
result is one JSON file, written whole, so that a run stopped anywhere goes on without repeating finished work.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import tempfile
import warnings
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.readout import Readout
from layerscope.evaluation.encode import readout_vectors
from layerscope.evaluation.tasks import TaskSpec, reseed
from layerscope.evaluation.uncertainty import Items
from layerscope.models.fingerprint import files_sha256
from layerscope.store import atomic
from layerscope.store.embeddings import EmbeddingStore, Space, text_key


@dataclass(frozen=True)
class Scene:
    """What all jobs of a run share: where vectors and results are, and what the model is called."""

    run: str
    store: str
    model: str
    revision: str | None
    width: int
    spaces: tuple[tuple[str, str, str], ...]  # (template, description as JSON, dtype)
    unit: bool = False  # vectors scaled to length 1, after centering


def task_config(spec: TaskSpec) -> dict[str, Any]:
    """What of a task decides its scores: whether its data may be downloaded does not."""
    return {name: value for name, value in spec.as_dict().items() if name != "offline"}


@lru_cache(maxsize=256)
def task_files(spec: TaskSpec) -> str | None:
    """A fingerprint of a task's local files: scores of other content are other scores. Every job of the task asks for it."""
    if spec.path is None:
        return None
    return files_sha256(file for file in Path(spec.path).rglob("*") if file.is_file())


@dataclass(frozen=True)
class Job:
    """One task at one site under one readout."""

    task: TaskSpec
    readout: Readout
    site: str
    layer: int

    @property
    def key(self) -> str:
        """A file name for its result."""
        text = json.dumps([task_config(self.task), task_files(self.task), self.readout.name, self.site], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def file(self, scene: Scene) -> Path:
        """Where its result is, once it is done."""
        return Path(scene.run) / "results" / self.task.name / f"{self.key}.json"


def texts_file(run: str | Path, task: str) -> Path:
    """Where the keys of a task's texts are kept: what centering averages over."""
    return Path(run) / "texts" / f"{task}.npy"


@lru_cache(maxsize=1)
def _task(spec: TaskSpec) -> Any:
    """A task with its data; kept until another task comes."""
    return spec.load()


@lru_cache(maxsize=1)
def _fingerprint(spec: TaskSpec) -> str:
    return str(spec.facts(_task(spec))["fingerprint"])


@lru_cache(maxsize=8)
def _space(store: str, description: str, dtype: str) -> Space:
    return EmbeddingStore(Path(store), budget=None).space(json.loads(description), dtype=dtype)


@lru_cache(maxsize=2)
def _task_keys(file: Path) -> list[bytes]:
    return [bytes(row) for row in np.load(file, allow_pickle=False)]


def forget() -> None:
    """Let go of tasks and vectors: another run in this process may find other data under the same names."""
    for held in (_task, _fingerprint, _space, _task_keys, task_files):
        held.cache_clear()


class Undefined(Exception):
    """A readout that gives every text the same vector: there is nothing to score."""


def _lookup(scene: Scene, job: Job) -> Any:
    """The vectors of texts for a job, centered if asked; `Undefined` if they are all the same."""
    description, dtype = next((d, t) for template, d, t in scene.spaces if template == job.readout.template)
    space = _space(scene.store, description, dtype)
    keys = _task_keys(texts_file(scene.run, job.task.name))
    whole = readout_vectors(space, keys, job.readout, job.site)
    mean = whole.mean(0, dtype=np.float64)
    spread = float(np.abs(whole - mean).max())
    if spread <= 1e-6 * max(1e-30, float(np.abs(whole).max())):
        raise Undefined(f"{job.readout.name} at {job.site} gives every text the same vector")
    row = {key: i for i, key in enumerate(keys)}
    vectors = (whole - mean).astype(np.float32) if job.readout.centering == "corpus" else whole
    if scene.unit:
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    return lambda texts: vectors[[row[text_key(text)] for text in texts]]


def quiet_mteb() -> None:
    """mteb and what it uses talk a lot; a run has its own progress bar."""
    for name in ("mteb", "datasets", "sentence_transformers", "fsspec"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    import datasets

    datasets.disable_progress_bars()


def run_job(scene: Scene, job: Job) -> dict[str, Any]:
    """Score a job, write its result, and return it. A failure is a result too: the others go on."""
    file = job.file(scene)
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    base = {"task": job.task.name, "layer": job.layer, "site": job.site, **job.readout.columns}
    try:
        result = {**base, **_score(scene, job)}
    except Exception as error:
        # a failure may pass (memory, a file in use): it is reported, not written, so that the next run tries again
        return {**base, "status": "failed", "reason": f"{type(error).__name__}: {error}"}
    atomic.write_json(file, result)
    return result


def _score(scene: Scene, job: Job) -> dict[str, Any]:
    import mteb

    from layerscope.evaluation.views import LayerView, model_meta

    task = _task(job.task)
    facts = {"task_type": task.metadata.type, "metric": task.metadata.main_score}
    try:
        lookup = _lookup(scene, job)
    except Undefined as reason:
        unscored = [{"split": split, "subset": subset, "score": None} for split in task.eval_splits for subset in task.hf_subsets]
        return {"status": "undefined", "reason": str(reason), **facts, "scores": unscored}
    reseed(task)
    # mteb's cache does not know which data a task was given: without their fingerprint two would share a file
    experiment = {"layer": job.layer, **job.readout.columns, "unit": scene.unit, "data": _fingerprint(job.task)[:12]}
    view = LayerView(lookup, model_meta(scene.model, scene.revision, scene.width, experiment))
    cache = mteb.ResultCache(Path(scene.run) / "mteb")
    with tempfile.TemporaryDirectory(prefix="layerscope-") as folder:
        found = mteb.evaluate(
            view,
            task,
            cache=cache,
            overwrite_strategy="always",
            prediction_folder=folder,
            show_progress_bar=False,
            co2_tracker=False,
            encode_kwargs={"batch_size": 4096, "show_progress_bar": False},
        )
        result = found.task_results[0]
        predictions = Path(folder) / task.prediction_file_name
        told = json.loads(predictions.read_text(encoding="utf-8")) if predictions.exists() else {}
    rows = []
    for split, entries in result.scores.items():
        for entry in entries:
            score = float(entry["main_score"])
            rows.append({"split": split, "subset": entry["hf_subset"], "score": score if math.isfinite(score) else None})
            _write_items(scene, job, task, split, entry, told)
    return {
        "status": "scored",
        **facts,
        "dataset_revision": result.dataset_revision,
        "mteb_version": result.mteb_version,
        "scores": rows,
    }


def items_file(scene: Scene, job: Job, split: str, subset: str) -> Path:
    """Where the per-item contributions of a job are."""
    return job.file(scene).with_name(f"{job.key}.{split}.{subset}.npz")


def _write_items(scene: Scene, job: Job, task: Any, split: str, entry: dict[str, Any], told: dict[str, Any]) -> None:
    from layerscope.evaluation.items import items_of

    items = items_of(task, split, entry, told.get(entry["hf_subset"], {}).get(split))
    if items is None:
        return
    arrays = {"values": items.values.astype(np.float32), "rule": np.array(items.rule)}
    if items.gold is not None:
        arrays["gold"] = items.gold.astype(np.float32)
    atomic.write_arrays(items_file(scene, job, split, entry["hf_subset"]), arrays)


def read_items(scene: Scene, job: Job, split: str, subset: str) -> Items | None:
    """The per-item contributions of a job, or None where its task has none."""
    file = items_file(scene, job, split, subset)
    if not file.exists():
        return None
    with np.load(file, allow_pickle=False) as held:
        gold = held["gold"].astype(np.float64) if "gold" in held.files else None
        return Items(str(held["rule"]), held["values"].astype(np.float64), gold)  # type: ignore[arg-type]
