"""The texts of a task as a corpus to profile, as the paper's Appendix E takes them.

run = layerscope.profile("smollm2-135m", task_corpus("TrecQuestions", sample=200))    # `layerscope
profile --task`
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data.corpus import Corpus, load_corpus
from layerscope.errors import DataError
from layerscope.evaluation.tasks.facts import used_splits
from layerscope.evaluation.tasks.resolve import resolve_tasks
from layerscope.evaluation.tasks.spec import TaskSpec

__all__ = ["corpus_of"]

FEWEST_TEXTS = 8  # of a task whose own texts are measured


def task_texts(spec: TaskSpec, sample: int | None, seed: int) -> list[str]:
    """Texts that scoring a task reads, each once: as many as asked for, drawn from its evaluation
    splits."""
    task = spec.load()
    named = ("input_column_name", "input1_column_name", "input2_column_name")
    columns = [getattr(task, name, None) for name in named] + [
        "text",
        "sentence1",
        "sentence2",
        "sentences",
    ]
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
    return (
        [text for value in values for text in _strings(value)]
        if hasattr(values, "__iter__")
        else []
    )


def task_corpus(
    name: str,
    *,
    sample: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
    offline: bool = False,
) -> Corpus:
    """The texts of one task as a corpus to profile. Its source names the task: `correlate` then
    knows whose metrics they are."""
    specs = resolve_tasks(
        name, data_dir=None if data_dir is None else Path(data_dir), offline=offline, seed=seed
    )
    if len(specs) != 1:
        raise DataError(
            f"{name!r} stands for {len(specs)} tasks: give one of them, such as {specs[0].name}."
        )
    return corpus_of(specs[0], sample, seed)


def corpus_of(spec: TaskSpec, sample: int | None, seed: int) -> Corpus:
    """The same of a task that was resolved."""
    texts = task_texts(spec, sample, seed)
    if len(texts) < FEWEST_TEXTS:
        raise DataError(
            f"{spec.name} has {len(texts)} different texts; at least {FEWEST_TEXTS} are needed."
        )
    read = load_corpus(texts, name=spec.name)
    return Corpus(
        read.texts,
        read.name,
        read.fingerprint,
        {**read.source, "kind": "task", "task": spec.name},
        read.dropped,
    )
