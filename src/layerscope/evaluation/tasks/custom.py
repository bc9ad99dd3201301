"""Tasks that mteb does not have, as mteb task classes: catalogued ones and a user's own folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layerscope.errors import DataError
from layerscope.evaluation.tasks.files import find_split, first_row
from layerscope.evaluation.tasks.info import TaskInfo, text_tasks

_KINDS = {
    "Classification": ("AbsTaskClassification", "accuracy", "t2c"),
    "Clustering": ("AbsTaskClusteringLegacy", "v_measure", "t2c"),
    "PairClassification": ("AbsTaskPairClassification", "max_ap", "t2t"),
    "Reranking": ("AbsTaskRetrieval", "map_at_1000", "t2t"),
    "STS": ("AbsTaskSTS", "cosine_spearman", "t2t"),
}

_COLUMNS = {
    "Reranking": ("query", "positive", "negative"),
    "STS": ("sentence1", "sentence2", "score"),
    "PairClassification": ("sentence1", "sentence2", "labels"),
    "Clustering": ("sentences", "labels"),
    "Classification": ("text", "label"),
}


def task_class(
    name: str,
    task_type: str,
    load: Callable[[Any], Any],
    *,
    description: str,
    origin: str,
    version: str,
    attributes: Mapping[str, Any] | None = None,
) -> type:
    """A task class of mteb whose data come from `load(task)`; `origin` and `version` stand for hub path and revision."""
    text_tasks()
    from mteb import abstasks
    from mteb.abstasks.task_metadata import TaskMetadata

    base_name, main_score, category = _KINDS[task_type]
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

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        if not self.data_loaded:
            self.dataset = load(self)
            self.data_loaded = True

    members = {"metadata": metadata, "load_data": load_data, "__module__": __name__, "__doc__": description}
    return type(name, (getattr(abstasks, base_name),), members | dict(attributes or {}))


def own_task_info(name: str, folder: Path) -> TaskInfo | None:
    """What a folder that is no task of mteb holds, told by its columns; None where it has no test split."""
    file = find_split(folder, "test")
    if file is None:
        return None
    columns = set(first_row(file.path))
    task_type = next((kind for kind, needed in _COLUMNS.items() if columns.issuperset(needed)), None)
    if task_type is None:
        layouts = "; ".join(f"{kind}: {', '.join(needed)}" for kind, needed in _COLUMNS.items())
        raise DataError(
            f"{file.path} has the columns {', '.join(sorted(columns)) or 'none'}, which are no known layout. Valid: {layouts}."
        )
    return TaskInfo(name, task_type, train_split="train" if task_type == "Classification" else None)
