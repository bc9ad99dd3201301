"""Tasks cut to fewer items."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from layerscope.errors import InvalidValueError

MIN_SAMPLE = 4
"""With fewer items some scores (correlations, average precision) do not exist."""

_TRAIN_SHOTS = 2
_OTHER_DOCUMENTS = 20


def check_sample(sample: int | None) -> None:
    """Refuse a sample that cannot be scored."""
    if sample is None:
        return
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < MIN_SAMPLE:
        raise InvalidValueError(
            f"sample is {sample!r}; it must be a whole number of items, {MIN_SAMPLE} or more, or left out."
        )


def draw(
    total: int, count: int, seed: int, labels: Sequence[Hashable] = (), cover: int = 0
) -> list[int]:
    """Return `count` of `total` positions in ascending order, with at least `cover` different labels
    where there are as many."""
    order = _shuffled(total, seed)
    first_of: dict[Hashable, int] = {}
    for i in order if labels else ():
        if len(first_of) < cover:
            first_of.setdefault(labels[i], i)
    positions = dict.fromkeys([*first_of.values(), *order])
    return sorted(list(positions)[:count])


def _shuffled(total: int, seed: int) -> list[int]:
    return sorted(range(total), key=lambda i: hashlib.sha256(f"{seed}|{i}".encode()).digest())


def apply_sample(task: Any, sample: int, seed: int) -> None:
    """Leave at most `sample` scored items per split and subset in a loaded task.

    Pairs, texts to classify and queries count as items. Of a clustering task the first set stays,
    with that many of its texts. A classifier keeps every training label, with twice as many rows as
    one training draws.
    """
    convert = getattr(task, "convert_v1_dataset_format_to_v2", None)
    if convert is not None:
        convert(num_proc=None)
    data = task.dataset
    nested = task.metadata.is_multilingual or convert is not None
    for splits in [data[subset] for subset in task.hf_subsets] if nested else [data]:
        for split in task.eval_splits:
            splits[split] = _sampled(task, splits[split], sample, seed)
        train = getattr(task, "train_split", None)
        trains = task.metadata.type == "Classification" and train not in task.eval_splits
        if trains and train in splits:
            shots = _TRAIN_SHOTS * task.samples_per_label
            splits[train] = _few_shots(splits[train], task.label_column_name, shots, seed)


def _sampled(task: Any, data: Any, sample: int, seed: int) -> Any:
    from datasets import Dataset

    task_type = task.metadata.type
    if isinstance(data, dict):
        return _sampled_queries(task, data, sample, seed)
    if task_type == "Clustering" and isinstance(data[0][task.label_column_name], list):
        texts = data[0][task.input_column_name]
        labels = data[0][task.label_column_name]
        places = draw(len(texts), sample, seed, labels, cover=2)
        columns = {
            task.input_column_name: [[texts[i] for i in places]],
            task.label_column_name: [[labels[i] for i in places]],
        }
        return Dataset.from_dict(columns)
    if task_type == "PairClassification" and len(data) == 1:
        data = Dataset.from_dict(data[0])
    if task_type not in ("Classification", "PairClassification", "Clustering"):
        return data.select(draw(len(data), sample, seed))
    # mteb takes a test split of exactly two labels for a binary task, so three must stay where
    # there are three.
    labels = [str(label) for label in data[task.label_column_name]]
    return data.select(draw(len(data), sample, seed, labels, cover=3))


def _few_shots(train: Any, column: str, shots: int, seed: int) -> Any:
    """Return at most `shots` rows of each label, in the rows' order."""
    labels = list(train[column])
    places: dict[Hashable, list[int]] = {label: [] for label in labels}
    for i in _shuffled(len(labels), seed):
        places[labels[i]].append(i)
    return train.select(sorted(i for rows in places.values() for i in rows[:shots]))


def _sampled_queries(task: Any, data: dict[str, Any], sample: int, seed: int) -> dict[str, Any]:
    """Return some queries, with the documents that are ranked for them (in a search: judged ones
    and some others)."""
    queries = data["queries"]
    corpus = data["corpus"]
    relevant = data["relevant_docs"]
    ranked = data["top_ranked"]
    ids = list(queries["id"])
    if str(task.metadata.main_score).startswith("max_over_subqueries"):  # q_0, q_1: parts of q
        groups = [query.rpartition("_")[0] for query in ids]
    else:
        groups = ids
    distinct = list(dict.fromkeys(groups))
    drawn = {distinct[i] for i in draw(len(distinct), sample, seed)}
    places = [i for i, group in enumerate(groups) if group in drawn]
    names = [ids[i] for i in places]
    documents = {
        document
        for query in names
        for document in (*relevant.get(query, {}), *(ranked or {}).get(query, ()))
    }
    rows = [i for i, document in enumerate(corpus["id"]) if document in documents]
    if ranked is None:
        others = sorted(set(range(len(corpus))) - set(rows))
        rows += [others[i] for i in draw(len(others), _OTHER_DOCUMENTS * sample, seed)]
    else:
        ranked = {query: ranked[query] for query in names if query in ranked}
    return {
        "queries": queries.select(places),
        "corpus": corpus.select(sorted(rows)),
        "relevant_docs": {query: relevant[query] for query in names if query in relevant},
        "top_ranked": ranked,
    }
