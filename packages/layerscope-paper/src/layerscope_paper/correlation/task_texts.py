"""The texts of a task as a corpus to profile, as the paper's Appendix E takes them.

run = layerscope.profile("smollm2-135m", task_corpus("TrecQuestions", sample=200))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data import Corpus, load_corpus
from layerscope.errors import DataError
from layerscope.evaluation.tasks import TaskSpec, resolve_tasks
from layerscope.evaluation.tasks.mteb_tasks import named_columns, used_splits

FEWEST_TEXTS = 8  # of a task whose own texts are measured
_TEXT_COLUMNS = {"text", "sentence1", "sentence2", "sentences"}


def task_corpus(
    name: str,
    *,
    sample: int | None = None,
    seed: int = 0,
    data_dir: str | Path | None = None,
) -> Corpus:
    """Return the texts of one task as a corpus to profile.

    Its source names the task, so that `correlate` compares its metrics with that task's scores.
    """
    specs = resolve_tasks(name, data_dir=data_dir, seed=seed)
    if len(specs) != 1:
        raise DataError(
            f"{name!r} names {len(specs)} tasks: give one of them, such as {specs[0].name}."
        )
    return corpus_of(specs[0], sample, seed)


def corpus_of(spec: TaskSpec, sample: int | None, seed: int) -> Corpus:
    """Return the texts of a resolved task as a corpus, at most `sample` of them."""
    all_texts = sorted(set(_texts_of(spec.load().task)))
    drawn = np.random.default_rng(seed).permutation(len(all_texts))[:sample]
    texts = [all_texts[i] for i in sorted(drawn)]
    if len(texts) < FEWEST_TEXTS:
        raise DataError(
            f"{spec.name} has {len(texts)} different texts; at least {FEWEST_TEXTS} are needed."
        )
    corpus = load_corpus(texts, name=spec.name)
    return replace(corpus, source={**corpus.source, "kind": "task", "task": spec.name})


def _texts_of(task: Any) -> Iterator[str]:
    """Yield the texts of a task's evaluation splits; of a search, its queries."""
    for _, split, data in used_splits(task):
        if split not in task.eval_splits:
            continue
        table = data["queries"] if isinstance(data, Mapping) else data
        names = {*named_columns(task, table), *_TEXT_COLUMNS.intersection(table.column_names)}
        for name in names - {getattr(task, "label_column_name", None)}:
            yield from _strings(table[name])


def _strings(values: Any) -> Iterator[str]:
    """Yield all strings in nested lists."""
    if isinstance(values, str):
        yield values
    elif hasattr(values, "__iter__"):
        for value in values:
            yield from _strings(value)
