"""A part of a task's data, for quick runs.

The items are drawn, not cut off at the front: some of MTEB's test splits are sorted by label (the first 100 rows of
Banking77's hold 3 of its 77 labels). The draw depends on the seed and the number of items only, and the items keep
their order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any

from layerscope.errors import DataError

MIN_LIMIT = 4
"""With fewer items some scores (correlations, average precision) do not exist."""

_TRAIN_SHOTS = 2
_OTHER_DOCUMENTS = 20


def check_limit(limit: int | None) -> None:
    """Refuse a limit that cannot be scored."""
    if limit is None:
        return
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < MIN_LIMIT:
        raise DataError(f"limit is {limit!r}; it must be a whole number of items, {MIN_LIMIT} or more, or left out.")


def draw(total: int, count: int, seed: int, labels: Sequence[Hashable] | None = None, cover: int = 0) -> list[int]:
    """`count` of `total` positions in ascending order, among them at least `cover` different labels (where there are)."""
    order = sorted(range(total), key=lambda i: hashlib.sha256(f"{seed}|{i}".encode()).digest())
    chosen: dict[int, None] = {}
    if labels is not None:
        seen: dict[Hashable, int] = {}
        for i in order:
            seen.setdefault(labels[i], i)
            if len(seen) == cover:
                break
        chosen = dict.fromkeys(list(seen.values())[:count])
    for i in order:
        if len(chosen) >= count:
            break
        chosen[i] = None
    return sorted(chosen)


def apply_limit(task: Any, limit: int, seed: int) -> None:
    """Leave at most `limit` scored items per split and subset in a loaded task.

    Pairs, texts to classify and queries count as items. Of a clustering task the first set stays, with that many of
    its texts. A classifier keeps every training label, with twice as many rows as one training draws.
    """
    convert = getattr(task, "convert_v1_dataset_format_to_v2", None)
    if convert is not None:
        convert(num_proc=None)
    data = task.dataset
    nested = task.metadata.is_multilingual or convert is not None
    for splits in [data[subset] for subset in task.hf_subsets] if nested else [data]:
        for split in task.eval_splits:
            splits[split] = _limited(task, splits[split], limit, seed)
        train = getattr(task, "train_split", None)
        if task.metadata.type == "Classification" and train in splits and train not in task.eval_splits:
            splits[train] = _few_shots(splits[train], task.label_column_name, _TRAIN_SHOTS * task.samples_per_label, seed)


def _limited(task: Any, data: Any, limit: int, seed: int) -> Any:
    kind = task.metadata.type
    if isinstance(data, dict):
        return _limited_queries(task, data, limit, seed)
    if kind == "Clustering" and isinstance(data[0][task.label_column_name], list):
        return _limited_set(task, data[0], limit, seed)
    if kind == "PairClassification" and len(data) == 1:
        from datasets import Dataset

        data = Dataset.from_dict(data[0])
    labels, cover = None, 0
    if kind in ("Classification", "PairClassification", "Clustering"):
        # mteb takes a test split of exactly two labels for a binary task, so three must stay where there are three.
        labels, cover = data[task.label_column_name], 3
        labels = [str(label) for label in labels]
    return data.select(draw(len(data), limit, seed, labels, cover))


def _limited_set(task: Any, row: dict[str, Any], limit: int, seed: int) -> Any:
    from datasets import Dataset

    texts, labels = row[task.input_column_name], row[task.label_column_name]
    kept = draw(len(texts), limit, seed, labels, cover=2)
    columns = {task.input_column_name: [[texts[i] for i in kept]], task.label_column_name: [[labels[i] for i in kept]]}
    return Dataset.from_dict(columns)


def _few_shots(train: Any, column: str, shots: int, seed: int) -> Any:
    """At most `shots` rows of each label, in the rows' order."""
    labels = list(train[column])
    counts: dict[Hashable, int] = {}
    kept = []
    for i in sorted(range(len(labels)), key=lambda i: hashlib.sha256(f"{seed}|{i}".encode()).digest()):
        counts[labels[i]] = counts.get(labels[i], 0) + 1
        if counts[labels[i]] <= shots:
            kept.append(i)
    return train.select(sorted(kept))


def _limited_queries(task: Any, data: dict[str, Any], limit: int, seed: int) -> dict[str, Any]:
    """Some queries, with the documents that are ranked for them (in a search: judged ones and some others)."""
    queries, corpus, relevant, ranked = (data[key] for key in ("queries", "corpus", "relevant_docs", "top_ranked"))
    ids = list(queries["id"])
    joined = str(task.metadata.main_score).startswith("max_over_subqueries")
    groups = list(dict.fromkeys(_group(query, joined) for query in ids))
    wanted = {groups[i] for i in draw(len(groups), limit, seed)}
    kept = [i for i, query in enumerate(ids) if _group(query, joined) in wanted]
    names = [ids[i] for i in kept]
    documents = {document for query in names for document in (*relevant.get(query, {}), *(ranked or {}).get(query, ()))}
    places = [i for i, document in enumerate(corpus["id"]) if document in documents]
    if ranked is None:
        others = sorted(set(range(len(corpus))) - set(places))
        places = sorted(places + [others[i] for i in draw(len(others), _OTHER_DOCUMENTS * limit, seed)])
    return {
        "queries": queries.select(kept),
        "corpus": corpus.select(places),
        "relevant_docs": {query: relevant[query] for query in names if query in relevant},
        "top_ranked": None if ranked is None else {query: ranked[query] for query in names if query in ranked},
    }


def _group(query: str, joined: bool) -> str:
    return query.rpartition("_")[0] if joined else query
