"""mteb's task objects: its own, set to what is scored of them, and new ones for other data; a
sample, counts and a fingerprint of a loaded task's data.

Every task is scored on its English subsets. The paper's tasks are scored on the subsets and splits
of MTEB's English benchmark, although mteb would also run the validation split of some.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from layerscope.errors import DataError
from layerscope.extras import missing

__all__ = [
    "is_mteb_task",
    "make_task",
    "mteb_task",
    "named_columns",
    "needed_splits",
    "used_splits",
]

# Names of the paper's Table 1. Several have a corrected successor in mteb (`….v2`): the paper's
# scores were measured on these.
PAPER = (
    *("AmazonCounterfactualClassification", "AmazonReviewsClassification"),
    *("Banking77Classification", "EmotionClassification", "MTOPDomainClassification"),
    *("MTOPIntentClassification", "MassiveIntentClassification"),
    *("MassiveScenarioClassification", "ToxicConversationsClassification"),
    *("TweetSentimentExtractionClassification", "ArxivClusteringS2S", "BiorxivClusteringS2S"),
    *("MedrxivClusteringS2S", "RedditClustering", "StackExchangeClustering"),
    *("TwentyNewsgroupsClustering", "SprintDuplicateQuestions", "TwitterSemEval2015"),
    *("TwitterURLCorpus", "AskUbuntuDupQuestions", "MindSmallReranking", "SciDocsRR"),
    *("StackOverflowDupQuestions", "BIOSSES", "SICK-R", "STS12", "STS13", "STS14", "STS15"),
    *("STS16", "STS17", "STSBenchmark"),
)

_KINDS = {
    "Classification": ("AbsTaskClassification", "accuracy", "t2c"),
    "Clustering": ("AbsTaskClusteringLegacy", "v_measure", "t2c"),
    "PairClassification": ("AbsTaskPairClassification", "max_ap", "t2t"),
    "Reranking": ("AbsTaskRetrieval", "map_at_1000", "t2t"),
    "STS": ("AbsTaskSTS", "cosine_spearman", "t2t"),
}


_BATCH = 1000
_COLUMNS = ("input_column_name", "label_column_name", "input1_column_name", "input2_column_name")
# of a sample: rows of each label to train on, by what one training draws; other documents to search
_TRAIN_SHOTS = 2
_OTHER_DOCUMENTS = 20


@cache
def text_tasks() -> dict[str, Any]:
    """Return mteb's task classes that need nothing but text, by name."""
    try:
        from mteb.get_tasks import TASK_LIST
    except ImportError as error:
        raise missing("mteb") from error
    return {
        cls.metadata.name: cls for cls in TASK_LIST if list(cls.metadata.modalities) == ["text"]
    }


def is_mteb_task(name: str) -> bool:
    """Return True if mteb has a text task of this name; the paper's are known without mteb."""
    return name in PAPER or name in text_tasks()


def mteb_task(name: str) -> Any:
    """Return one of mteb's tasks without its data, set to the subsets and splits to score."""
    metadata = text_tasks()[name].metadata
    averaged = getattr(metadata, "tasks", None)
    if averaged:
        names = ", ".join(task.metadata.name for task in averaged)
        raise DataError(
            f"task {name!r} is an average over other tasks. Give its parts instead: {names}."
        )
    import mteb

    if name in PAPER:
        listed = _english_benchmark()[name]
        return mteb.get_task(name, eval_splits=listed.eval_splits, hf_subsets=listed.hf_subsets)
    languages = metadata.hf_subsets_to_langscripts
    english = [
        subset
        for subset, codes in languages.items()
        if all(code.startswith("eng-") for code in codes)
    ]
    return mteb.get_task(name, hf_subsets=english or list(languages))


@cache
def _english_benchmark() -> dict[str, Any]:
    import mteb

    return {task.metadata.name: task for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}


def needed_splits(task: Any) -> list[str]:
    """Return the splits that scoring a task reads, the one that trains a classifier first."""
    trains = task.metadata.type == "Classification"
    return [*([task.train_split] if trains else []), *task.eval_splits]


def reseed(task: Any) -> None:
    """Reset a task's random state to what it was when the task was created.

    mteb's newer clustering tasks draw their documents from a generator that moves on with every
    evaluation. Without this reset, a task object would score the second layer on other documents
    than the first.
    """
    fresh = type(task)(seed=task.seed)
    task.rng_state = fresh.rng_state
    task.np_rng = fresh.np_rng


def make_task(
    name: str,
    task_type: str,
    description: str,
    origin: str,
    version: str,
    attributes: Mapping[str, Any] | None = None,
) -> Any:
    """Return a new task of mteb without data; `origin` and `version` stand for hub path and
    revision."""
    text_tasks()
    from mteb import abstasks
    from mteb.abstasks.task_metadata import TaskMetadata

    base, main_score, category = _KINDS[task_type]
    metadata = TaskMetadata(
        name=name,
        description=description,
        dataset={"path": origin, "revision": version},
        type=task_type,
        category=category,
        modalities=["text"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score=main_score,
    )
    members = {"metadata": metadata, "__module__": __name__, "__doc__": description}
    return type(name, (getattr(abstasks, base),), {**members, **(attributes or {})})()


# Facts


def used_splits(task: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield every (subset, split, data) that scoring reads, the training split included."""
    train = getattr(task, "train_split", None) if hasattr(task, "samples_per_label") else None
    for subset in task.hf_subsets:
        splits = task.dataset.get(subset, task.dataset)
        for split in dict.fromkeys((*([train] if train in splits else []), *task.eval_splits)):
            yield subset, split, splits[split]


def named_columns(task: Any, data: Any) -> list[str]:
    """Return the columns of a dataset that a task's attributes name as texts or labels."""
    names = [getattr(task, attribute, None) for attribute in _COLUMNS]
    names += getattr(task, "column_names", ())
    return [name for name in names if isinstance(name, str) and name in data.column_names]


def counts(task: Any) -> dict[str, int]:
    """Return the number of scored items (pairs, texts, queries), and of documents to search."""
    total = Counter(items=0)
    for _, split, data in used_splits(task):
        if isinstance(data, Mapping):
            total["items"] += len(data["queries"])
            total["documents"] += len(data["corpus"])
        elif split in task.eval_splits:
            column = getattr(task, "label_column_name", None)
            may_have_lists = task.metadata.type == "Clustering" or len(data) == 1
            labels = data[column] if may_have_lists and column in data.column_names else []
            has_lists = len(labels) and isinstance(labels[0], list)
            total["items"] += sum(map(len, labels)) if has_lists else len(data)
    return dict(total)


def fingerprint(task: Any) -> str:
    """Return a sha256 over every row that scoring reads, in its order.

    Columns that scoring does not read, such as names of labels, do not make data different.
    """
    digest = hashlib.sha256()
    for subset, split, data in used_splits(task):
        digest.update(json.dumps([subset, split]).encode())
        is_search = isinstance(data, Mapping)
        for table in [data["queries"], data["corpus"]] if is_search else [data]:
            usual = {"score", "id", "title", "text"} & set(table.column_names)
            columns = sorted({*named_columns(task, table), *usual}) or sorted(table.column_names)
            for batch in table.select_columns(columns).iter(batch_size=_BATCH):
                digest.update(_canonical(batch))
        if is_search:
            digest.update(_canonical([data["relevant_docs"], data["top_ranked"]]))
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode()


# Samples


def draw(
    total: int, count: int, seed: int, labels: Sequence[Hashable] = (), cover: int = 0
) -> list[int]:
    """Return `count` of `total` positions in ascending order, with at least `cover` different
    labels where there are as many."""
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
