"""A task to score, small enough to send to another process, the task object it stands for, and
tasks cut to fewer items."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from layerscope.data.hub import hub_explained, hub_offline
from layerscope.errors import (
    DataError,
    InvalidValueError,
)
from layerscope.evaluation.tasks import catalogue, columns
from layerscope.evaluation.tasks.facts import counts, fingerprint
from layerscope.evaluation.tasks.files import NOT_MTEB, TaskFolders, folder_readers, vanished
from layerscope.evaluation.tasks.info import new_task, task_info

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
    total: int, count: int, seed: int, labels: Sequence[Hashable] | None = None, cover: int = 0
) -> list[int]:
    """`count` of `total` positions in ascending order, with at least `cover` different labels where
    there are as many."""
    order = _shuffled(total, seed)
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
        if (
            task.metadata.type == "Classification"
            and train in splits
            and train not in task.eval_splits
        ):
            splits[train] = _few_shots(
                splits[train], task.label_column_name, _TRAIN_SHOTS * task.samples_per_label, seed
            )


def _sampled(task: Any, data: Any, sample: int, seed: int) -> Any:
    kind = task.metadata.type
    if isinstance(data, dict):
        return _sampled_queries(task, data, sample, seed)
    if kind == "Clustering" and isinstance(data[0][task.label_column_name], list):
        return _sampled_set(task, data[0], sample, seed)
    if kind == "PairClassification" and len(data) == 1:
        from datasets import Dataset

        data = Dataset.from_dict(data[0])
    labels, cover = None, 0
    if kind in ("Classification", "PairClassification", "Clustering"):
        # mteb takes a test split of exactly two labels for a binary task, so three must stay where
        # there are three.
        labels, cover = data[task.label_column_name], 3
        labels = [str(label) for label in labels]
    return data.select(draw(len(data), sample, seed, labels, cover))


def _sampled_set(task: Any, row: dict[str, Any], sample: int, seed: int) -> Any:
    from datasets import Dataset

    texts, labels = row[task.input_column_name], row[task.label_column_name]
    chosen = draw(len(texts), sample, seed, labels, cover=2)
    kept = {
        task.input_column_name: [[texts[i] for i in chosen]],
        task.label_column_name: [[labels[i] for i in chosen]],
    }
    return Dataset.from_dict(kept)


def _few_shots(train: Any, column: str, shots: int, seed: int) -> Any:
    """At most `shots` rows of each label, in the rows' order."""
    labels = list(train[column])
    chosen: dict[Hashable, list[int]] = {label: [] for label in labels}
    for i in _shuffled(len(labels), seed):
        chosen[labels[i]].append(i)
    return train.select(sorted(i for rows in chosen.values() for i in rows[:shots]))


def _sampled_queries(task: Any, data: dict[str, Any], sample: int, seed: int) -> dict[str, Any]:
    """Some queries, with the documents that are ranked for them (in a search: judged ones and some
    others)."""
    queries, corpus, relevant, ranked = (
        data[key] for key in ("queries", "corpus", "relevant_docs", "top_ranked")
    )
    ids = list(queries["id"])
    joined = str(task.metadata.main_score).startswith("max_over_subqueries")
    groups = list(dict.fromkeys(_group(query, joined) for query in ids))
    wanted = {groups[i] for i in draw(len(groups), sample, seed)}
    chosen = [i for i, query in enumerate(ids) if _group(query, joined) in wanted]
    names = [ids[i] for i in chosen]
    documents = {
        document
        for query in names
        for document in (*relevant.get(query, {}), *(ranked or {}).get(query, ()))
    }
    places = [i for i, document in enumerate(corpus["id"]) if document in documents]
    if ranked is None:
        others = sorted(set(range(len(corpus))) - set(places))
        places = sorted(
            places + [others[i] for i in draw(len(others), _OTHER_DOCUMENTS * sample, seed)]
        )
    return {
        "queries": queries.select(chosen),
        "corpus": corpus.select(places),
        "relevant_docs": {query: relevant[query] for query in names if query in relevant},
        "top_ranked": None
        if ranked is None
        else {query: ranked[query] for query in names if query in ranked},
    }


def _group(query: str, joined: bool) -> str:
    return query.rpartition("_")[0] if joined else query


Source = Literal["hub", "local", "package"]


@dataclass(frozen=True)
class TaskSpec:
    """One task and where its data come from.

    `path` is the task's folder for local data. `sample` scores a part of the data, drawn with
    `seed`; the scoring itself always uses mteb's own seed. `offline` keeps the hub libraries off
    the network.
    """

    name: str
    source: Source
    path: str | None = None
    sample: int | None = None
    seed: int = 0
    offline: bool = False

    def load(self) -> Any:
        """A new mteb task object with its data; the rows of local data stay in the files' order."""
        notes: dict[str, Any] = {}
        if self.source == "local":
            task, notes = self._reader().load(self.name, Path(self.path or ""))
        elif self.source == "package":
            task = catalogue.new_task(self.name, offline=self.offline)
            task.load_data()
        else:
            task = self._load_hub()
        if self.sample is not None:
            apply_sample(task, self.sample, self.seed)
        columns.list_columns(task)
        task.data_notes = notes
        return task

    def facts(self, task: Any | None = None) -> dict[str, Any]:
        """What is scored and on which data, for a report. Give the loaded `task` to save loading it
        again."""
        task = self.load() if task is None else task
        metadata = task.metadata
        exact, reason = self._exact(task)
        own = {} if self.source != "package" else catalogue.TASKS.get(self.name).facts()
        return {
            **task.data_notes,
            "name": self.name, "task_type": metadata.type, "main_score": metadata.main_score,
            "splits": list(task.eval_splits), "subsets": list(task.hf_subsets),
            "dataset": metadata.dataset.get("path"), "revision": metadata.dataset.get("revision"),
            "source": self.source, "path": self.path,
            "limit": self.sample, "seed": self.seed if self.sample is not None else None,
            **counts(task),
            "fingerprint": fingerprint(task), "exact": exact, "exact_reason": reason,
            "license": own.get("license", metadata.license),
            "citation": own.get("citation", (metadata.bibtex_citation or "").strip() or None),
            "superseded_by": metadata.superseded_by,
        }  # fmt: skip

    def _exact(self, task: Any) -> tuple[bool | None, str]:
        """Whether the data are MTEB's own split, as far as that can be known."""
        if self.sample is not None:
            return False, f"a part: sample {self.sample}"
        if self.source == "hub":
            return True, "the revision that mteb pins"
        if self.source == "local":
            return self._reader().exact(task)
        return None, NOT_MTEB

    def _reader(self) -> TaskFolders:
        folder = Path(self.path or "")
        for reader in folder_readers():
            if reader.find(self.name, folder):
                return reader
        raise vanished(self.name, folder)

    def _load_hub(self) -> Any:
        task = new_task(task_info(self.name))
        repo, revision = (task.metadata.dataset.get(key) for key in ("path", "revision"))
        shown = f"the data of task {self.name} ({repo}, revision {revision})"
        explained = hub_explained("dataset", repo, revision, shown, self.offline)
        with hub_offline(self.offline), explained:
            task.load_data()
        for subset in task.hf_subsets:
            missing = set(task.eval_splits) - set(task.dataset.get(subset, task.dataset))
            if missing:
                raise DataError(
                    f"the data of task {self.name} ({subset}) have no split {', '.join(sorted(missing))}."
                )
        return task
