"""Describe an mteb task in numbers: the texts that train, those that are compared or ranked, and
the draws.

mteb's own code draws the samples, with its seeds. A task is described only if mteb would run
nothing but the code of its base class; mteb scores the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerscope.evaluation.scoring import LeftToMteb
from layerscope_gpu.scoring.kmeans import Clustering
from layerscope_gpu.scoring.ranking import MEASURES, Pairs, Ranking
from layerscope_gpu.scoring.regression import Classification

Problem = Classification | Clustering | Pairs | Ranking
Rows = Callable[[Sequence[str]], np.ndarray]
"""Returns the rows of the vectors of texts."""

# of mteb's clustering evaluator
_SEED = 42
_BATCH = 500


@dataclass(frozen=True)
class Part:
    """One split and subset of a task; `items` says if its score is a mean of items that can be
    resampled."""

    split: str
    subset: str
    problem: Problem
    items: bool = True


class NotDescribed(LeftToMteb):
    """Only mteb can compute the scores of this task; the message gives the reason."""


def parts_of(task: Any, rows: Rows) -> list[Part]:
    """Describe every split and subset of a loaded task with a new random state, or raise
    `NotDescribed`."""
    maker = _maker(task)
    convert = getattr(task, "convert_v1_dataset_format_to_v2", None)
    if convert is not None:
        convert(num_proc=None)
    subsets = []
    for split in task.eval_splits:
        for subset in task.hf_subsets:
            splits = task.dataset.get(subset, task.dataset)
            subsets.append(Part(split, subset, *maker(task, splits, split, rows)))
    return subsets


Described = tuple[Problem, bool]
"""A problem, and True if its score is a mean of items that can be resampled."""
Maker = Callable[[Any, Any, str, Rows], Described]


def _maker(task: Any) -> Maker:
    from mteb.abstasks import (
        AbsTaskClassification,
        AbsTaskClustering,
        AbsTaskPairClassification,
        AbsTaskRetrieval,
        AbsTaskSTS,
    )
    from mteb.abstasks.clustering_legacy import AbsTaskClusteringLegacy

    kinds: list[tuple[type, Maker, str]] = [
        (
            AbsTaskClassification,
            _classification,
            "evaluate _evaluate_subset _run_experiment _undersample_data _calculate_scores",
        ),
        (AbsTaskClusteringLegacy, _clustering, "evaluate _evaluate_subset _compute_metrics"),
        (AbsTaskClustering, _drawn_clustering, "evaluate _evaluate_subset"),
        (AbsTaskSTS, _similarity, "evaluate _evaluate_subset _calculate_scores"),
        (AbsTaskPairClassification, _pairs, "evaluate _evaluate_subset _compute_metrics"),
        (AbsTaskRetrieval, _ranking, "evaluate _evaluate_subset"),
    ]
    for base, maker, methods in kinds:
        if isinstance(task, base):
            overridden = [
                name
                for name in methods.split()
                if getattr(type(task), name) is not getattr(base, name)
            ]
            if overridden:
                raise NotDescribed(f"it has its own {overridden[0]}")
            return maker
    raise NotDescribed(f"scores of type {task.metadata.type} are mteb's alone")


def _only(task: Any, *scores: str) -> str:
    score = str(task.metadata.main_score)
    if score not in scores:
        raise NotDescribed(f"its score is {score}")
    return score


def _classification(task: Any, splits: Any, split: str, rows: Rows) -> Described:
    from sklearn.linear_model import LogisticRegression

    _only(task, "accuracy")
    expected = LogisticRegression(max_iter=100).get_params() | {"random_state": None}
    model = task.evaluator_model
    is_default = type(model) is LogisticRegression
    if not is_default or model.get_params() | {"random_state": None} != expected:
        raise NotDescribed(f"its classifier is {model!r}")
    if task.is_cross_validation or not isinstance(task.input_column_name, str):
        raise NotDescribed("it is cross-validated, or has several inputs")
    train = splits[task.train_split]
    test = splits[split]
    shuffled = None
    draws = []
    for i in range(task.n_experiments):
        _, shuffled, drawn = task._undersample_data(train, i, shuffled)
        draws.append(np.array(drawn))
    used = sorted({int(i) for drawn in draws for i in drawn})
    texts = train[task.input_column_name][:]
    column = task.label_column_name
    place = np.zeros(len(texts), int)
    place[used] = rows([texts[i] for i in used])
    raw_labels = np.array(train[column][:]), np.array(test[column][:])
    codes = np.unique(np.concatenate(raw_labels), return_inverse=True)[1]
    problem = Classification(
        tuple(place[drawn] for drawn in draws),
        tuple(codes[drawn] for drawn in draws),
        rows(test[task.input_column_name][:]),
        codes[len(texts) :],
    )
    return problem, True


def _clustering(task: Any, splits: Any, split: str, rows: Rows) -> Described:
    _only(task, "v_measure")
    sets = []
    labels = []
    for row in splits[split]:
        _, codes = np.unique(np.array(row[task.label_column_name]), return_inverse=True)
        labels.append(codes)
        # texts with one label are never encoded
        sets.append(rows(row[task.input_column_name]) if codes.max() else np.zeros(0, int))
    counts = tuple(int(codes.max()) + 1 for codes in labels)
    return Clustering(tuple(sets), tuple(labels), counts, _BATCH, _SEED), len(sets) > 1


def _drawn_clustering(task: Any, splits: Any, split: str, rows: Rows) -> Described:
    """Describe mteb's newer kind: documents are drawn, and from them samples with repetition."""
    _only(task, "v_measure")
    data = splits[split]
    random = task.rng_state
    count = task.max_document_to_embed
    share = task.max_fraction_of_documents_to_embed
    if share is not None:
        count = int(share * len(data))
    if count is not None:
        data = data.select(random.sample(range(len(data)), k=min(len(data), count)))
    places = rows(data[task.input_column_name][:])
    levels = [
        label if isinstance(label, list) else [label] for label in data[task.label_column_name][:]
    ]
    depth = max(map(len, levels))
    if task.max_depth is not None:
        depth = min(depth, task.max_depth)
    sets = []
    labels = []
    counts = []
    for level in range(depth):
        named = np.array([label[level] if len(label) > level else -1 for label in levels])
        # labels that are names are all valid, as in mteb: −1 has become the name "-1"
        valid = [i for i, label in enumerate(named) if label != -1]
        codes = np.unique(named[valid], return_inverse=True)[1]
        for _ in range(task.n_clusters):
            drawn = random.choices(range(len(valid)), k=task.max_documents_per_cluster)
            sets.append(places[[valid[i] for i in drawn]])
            labels.append(codes[drawn])
            counts.append(int(codes.max()) + 1)
    batch = task.k_mean_batch_size
    return Clustering(tuple(sets), tuple(labels), tuple(counts), batch, task.seed), True


def _similarity(task: Any, splits: Any, split: str, rows: Rows) -> Described:
    _only(task, "cosine_spearman")
    data = splits[split]
    column_a, column_b = task.column_names
    if not isinstance(column_a, str):
        raise NotDescribed("it has several inputs")
    gold = np.array(data["score"][:], np.float64)
    return Pairs(rows(data[column_a][:]), rows(data[column_b][:]), gold), True


def _pairs(task: Any, splits: Any, split: str, rows: Rows) -> Described:
    score = _only(task, "max_ap", *(f"{measure}_ap" for measure in MEASURES))
    data = splits[split]
    columns = data[0] if len(data) == 1 else {name: data[name][:] for name in data.column_names}
    measures = MEASURES if score == "max_ap" else (score.removesuffix("_ap"),)
    rows_a = rows(columns[task.input1_column_name])
    rows_b = rows(columns[task.input2_column_name])
    gold = np.array(columns[task.label_column_name], np.float64).ravel()
    return Pairs(rows_a, rows_b, gold, True, measures), True


def _ranking(task: Any, splits: Any, split: str, rows: Rows) -> Described:
    from mteb._create_dataloaders import create_dataloader
    from mteb.abstasks import AbsTaskRetrieval
    from mteb.types import PromptType

    match = re.fullmatch(
        r"(max_over_subqueries_)?(map|ndcg)_at_(\d+)", str(task.metadata.main_score)
    )
    if match is None or task.skip_first_result:
        raise NotDescribed(f"its score is {task.metadata.main_score}")
    joined = match[1] is not None
    if type(task).task_specific_scores is not AbsTaskRetrieval.task_specific_scores and not joined:
        raise NotDescribed("it adds scores of its own")
    data = splits[split]
    relevant_docs = {query: docs for query, docs in data["relevant_docs"].items() if docs}
    queries = data["queries"].select(
        [i for i, query in enumerate(data["queries"]["id"]) if query in relevant_docs]
    )
    corpus = data["corpus"]
    ids = list(queries["id"])

    def encoded(texts: Any, kind: Any) -> np.ndarray:
        loader = create_dataloader(
            texts, task_metadata=task.metadata, prompt_type=kind, batch_size=4096
        )
        return rows([text for batch in loader for text in batch["text"]])

    names = list(corpus["id"])
    place = {name: i for i, name in enumerate(names)}
    names_of = [query.rpartition("_")[0] for query in ids] if joined else ids
    group_names, groups = np.unique(np.array(names_of, dtype=object), return_inverse=True)
    # mteb uses the judgments of a group's last query
    last = dict(zip(names_of, ids, strict=True))
    judged = [
        (i, place.get(doc, -1), grade)
        for i, name in enumerate(group_names)
        for doc, grade in relevant_docs[last[name]].items()
    ]
    order = np.empty(len(names), int)
    order[np.argsort(np.array(names, dtype=object), kind="stable")] = np.arange(len(names))
    pairs = None
    if (ranked := data["top_ranked"]) is not None:
        listed = [ranked.get(query, ()) for query in ids]
        flat = np.fromiter((place[doc] for documents in listed for doc in documents), np.int64)
        query_of = np.repeat(np.arange(len(ids)), [len(documents) for documents in listed])
        pairs = np.stack([flat, query_of])
    skip = None
    if task.ignore_identical_ids:
        skip = np.array([place.get(query, -1) for query in ids])
    problem = Ranking(
        encoded(queries, PromptType.query),
        encoded(corpus, PromptType.document),
        pairs,
        groups,
        np.array(judged, float).T,
        order,
        match[2],
        int(match[3]),
        skip,
    )
    return problem, task.metadata.type == "Reranking" and match[2] == "map" and not joined
