"""Metrics on a task's own texts, as the paper's Appendix E takes them: a corpus to profile, or what the embedding store has.

    run = layerscope.profile("smollm2-135m", task_corpus("TrecQuestions", sample=200))    # `layerscope profile --task`
    table = stored_metrics(layerscope.evaluate(...))    # metric, task, layer, value: pooled metrics, without a further pass

An evaluation has encoded every text of its tasks at every layer already. Metrics of pooled vectors (dataset entropy, the ranks,
anisotropy, …) follow from those; metrics of token states or of augmented views need a profile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.cache import cache_dir
from layerscope.core.readout import DEFAULT_READOUT, Readout
from layerscope.core.templates import get_template
from layerscope.data.corpus import Corpus, load_corpus
from layerscope.errors import DataError, LayerscopeError, UnknownNameError
from layerscope.evaluation.encode import readout_vectors, space_description
from layerscope.evaluation.run import Evaluation, texts_file
from layerscope.evaluation.tasks.facts import used_splits
from layerscope.evaluation.tasks.resolve import resolve_tasks
from layerscope.evaluation.tasks.spec import TaskSpec
from layerscope.metrics import metrics
from layerscope.metrics.samples import PooledRows
from layerscope.store import checked
from layerscope.store.embeddings import EmbeddingStore

FEWEST_TEXTS = 8  # of a task whose own texts are measured


def task_texts(spec: TaskSpec, sample: int | None, seed: int) -> list[str]:
    """Texts that scoring a task reads, each once: as many as asked for, drawn from its evaluation splits."""
    task = spec.load()
    named = ("input_column_name", "input1_column_name", "input2_column_name")
    columns = [getattr(task, name, None) for name in named] + ["text", "sentence1", "sentence2", "sentences"]
    columns += [name for name in getattr(task, "column_names", ()) if isinstance(name, str)]
    texts: dict[str, None] = {}
    for _, split, data in used_splits(task):
        if split in task.eval_splits:
            part = data["queries"] if isinstance(data, Mapping) else data
            for column in dict.fromkeys(columns):
                if isinstance(column, str) and column in part.column_names:
                    texts.update(dict.fromkeys(_strings(part[column])))
    every = sorted(texts)
    drawn = np.random.default_rng(seed).permutation(len(every))[:sample]
    return [every[i] for i in sorted(drawn)]


def _strings(values: Any) -> list[str]:
    """All strings in nested lists."""
    if isinstance(values, str):
        return [values]
    return [text for value in values for text in _strings(value)] if hasattr(values, "__iter__") else []


def task_corpus(
    name: str, *, sample: int | None = None, seed: int = 0, data_dir: str | Path | None = None, offline: bool = False
) -> Corpus:
    """The texts of one task as a corpus to profile. Its source names the task: `correlate` then knows whose metrics they are."""
    specs = resolve_tasks(name, data_dir=None if data_dir is None else Path(data_dir), offline=offline, seed=seed)
    if len(specs) != 1:
        raise DataError(f"{name!r} stands for {len(specs)} tasks: give one of them, such as {specs[0].name}.")
    return corpus_of(specs[0], sample, seed)


def corpus_of(spec: TaskSpec, sample: int | None, seed: int) -> Corpus:
    """The same of a task that was resolved."""
    texts = task_texts(spec, sample, seed)
    if len(texts) < FEWEST_TEXTS:
        raise DataError(f"{spec.name} has {len(texts)} different texts; at least {FEWEST_TEXTS} are needed.")
    read = load_corpus(texts, name=spec.name)
    return Corpus(read.texts, read.name, read.fingerprint, {**read.source, "kind": "task", "task": spec.name}, read.dropped)


def stored_metrics(
    evaluation: Evaluation,
    *,
    readout: str = DEFAULT_READOUT,
    store: str | Path | None = None,
) -> pd.DataFrame:
    """Metrics of pooled vectors on each task's texts, from the vectors that an evaluation left in the store: no model is run.

    One row per metric, task and layer, ready for `correlate`. `readout` says which vectors; `store` is the folder that the
    evaluation was given (default: layerscope's own). Undefined values are left out.
    """
    if evaluation.path is None:
        raise LayerscopeError("this evaluation is in memory: only one with a folder knows which texts its tasks have.")
    how, conventions = Readout.parse(readout), evaluation.manifest["conventions"]
    if readout not in conventions["readouts"]:
        raise UnknownNameError("readout of this evaluation", readout, conventions["readouts"])
    described = space_description(evaluation.manifest["model"], get_template(how.template), conventions["max_length"])
    root = Path(store) if store else cache_dir() / "embeddings"
    space = EmbeddingStore(root, None).space(described, dtype=conventions["store_dtype"])
    measures = {name: metric() for name, metric in metrics().items() if metric.info.level == "pooled"}
    rows = []
    for task, places in evaluation.scores.groupby("task", sort=False):
        keys = [row.tobytes() for row in checked.read_array(texts_file(evaluation.path, str(task)))]
        for layer, site in sorted(set(zip(places["layer"].astype(int), places["site"].astype(str), strict=True))):
            data = PooledRows()
            data.update(readout_vectors(space, keys, how, site), np.array([int.from_bytes(key[:8], "big") for key in keys]))
            for name, metric in measures.items():
                value = metric.estimate(data).value
                if np.isfinite(value):
                    rows.append({"metric": name, "task": task, "layer": layer, "value": value})
    return pd.DataFrame(rows, columns=["metric", "task", "layer", "value"])
