"""Which tasks there are, what is scored of each (type, splits, subsets), and mteb's task objects
themselves.

The paper's tasks are the 32 English ones of its Table 1, by their names in mteb. Several have a
corrected successor in mteb (`….v2`, hierarchical arXiv). The originals are kept: they are what the
paper's scores were measured on. Every task is scored on its English test split only, although mteb
would also run the validation split, or other languages, of some.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from layerscope.errors import DataError
from layerscope.extras import missing

__all__ = ["TaskInfo", "is_mteb_task", "new_task", "task_info", "text_task"]

MONOLINGUAL = ("default",)
"""The one subset of a task whose dataset has no languages to choose from."""


@dataclass(frozen=True)
class TaskInfo:
    """One task: its type and what of it is scored. `train_split` is None where nothing is
    trained."""

    name: str
    task_type: str
    subsets: tuple[str, ...] = MONOLINGUAL
    splits: tuple[str, ...] = ("test",)
    train_split: str | None = None

    @property
    def needed_splits(self) -> tuple[str, ...]:
        """Every split that must be there."""
        return (*((self.train_split,) if self.train_split else ()), *self.splits)


def text_task(name: str, task_type: str, *subsets: str) -> TaskInfo:
    """A task with a test split, and a training split where a classifier is trained."""
    return TaskInfo(
        name,
        task_type,
        subsets or MONOLINGUAL,
        train_split="train" if task_type == "Classification" else None,
    )


# A name, with the one subset that is scored where a task has several. `en-ext` is English as well:
# more, synthetic, counterfactuals. MTEB's English benchmark uses `en`.
_PAPER = {
    "Classification": (
        "AmazonCounterfactualClassification:en AmazonReviewsClassification:en "
        "Banking77Classification EmotionClassification MTOPDomainClassification:en "
        "MTOPIntentClassification:en MassiveIntentClassification:en "
        "MassiveScenarioClassification:en ToxicConversationsClassification "
        "TweetSentimentExtractionClassification"
    ),
    "Clustering": (
        "ArxivClusteringS2S BiorxivClusteringS2S MedrxivClusteringS2S RedditClustering "
        "StackExchangeClustering TwentyNewsgroupsClustering"
    ),
    "PairClassification": "SprintDuplicateQuestions TwitterSemEval2015 TwitterURLCorpus",
    "Reranking": "AskUbuntuDupQuestions MindSmallReranking SciDocsRR StackOverflowDupQuestions",
    "STS": "BIOSSES SICK-R STS12 STS13 STS14 STS15 STS16 STS17:en-en STSBenchmark",
}
_NAMED = [(kind, *name.split(":")) for kind, names in _PAPER.items() for name in names.split()]

PAPER_TASKS: dict[str, TaskInfo] = {
    name: text_task(name, kind, *subsets) for kind, name, *subsets in _NAMED
}


@cache
def text_tasks() -> dict[str, Any]:
    """mteb's task classes that need nothing but text, by name."""
    try:
        from mteb.get_tasks import TASK_LIST
    except ImportError as error:
        raise missing("mteb") from error
    return {
        cls.metadata.name: cls for cls in TASK_LIST if list(cls.metadata.modalities) == ["text"]
    }


def is_mteb_task(name: str) -> bool:
    """Whether mteb has a text task of this name; the paper's tasks are known without importing
    mteb."""
    return name in PAPER_TASKS or name in text_tasks()


def task_info(name: str) -> TaskInfo:
    """What is scored of one of mteb's tasks."""
    if name in PAPER_TASKS:
        return PAPER_TASKS[name]
    cls = text_tasks()[name]
    metadata = cls.metadata
    parts = getattr(metadata, "tasks", None)
    if parts:
        names = ", ".join(part.metadata.name for part in parts)
        raise DataError(
            f"task {name!r} is an average over other tasks. Give its parts instead: {names}."
        )
    train = getattr(cls, "train_split", None) if metadata.type == "Classification" else None
    return TaskInfo(name, metadata.type, _subsets(metadata), tuple(metadata.eval_splits), train)


def _subsets(metadata: Any) -> tuple[str, ...]:
    """The subsets that are English throughout; every subset of a task that has none."""
    languages = metadata.hf_subsets_to_langscripts
    english = [
        subset
        for subset, codes in languages.items()
        if all(code.startswith("eng-") for code in codes)
    ]
    return tuple(english or languages)


def new_task(info: TaskInfo) -> Any:
    """mteb's own task object without its data, set to the splits and subsets that are scored."""
    text_tasks()
    import mteb

    subsets = None if info.subsets == MONOLINGUAL else list(info.subsets)
    return mteb.get_task(info.name, eval_splits=list(info.splits), hf_subsets=subsets)


def reseed(task: Any) -> None:
    """Reset a task's random state to what it was when the task was created.

    mteb's newer clustering tasks draw their documents from a generator that moves on with every
    evaluation. Without this reset, a task object would score the second layer on other documents
    than the first.
    """
    fresh = type(task)(seed=task.seed)
    task.rng_state, task.np_rng = fresh.rng_state, fresh.np_rng


_KINDS = {
    "Classification": ("AbsTaskClassification", "accuracy", "t2c"),
    "Clustering": ("AbsTaskClusteringLegacy", "v_measure", "t2c"),
    "PairClassification": ("AbsTaskPairClassification", "max_ap", "t2t"),
    "Reranking": ("AbsTaskRetrieval", "map_at_1000", "t2t"),
    "STS": ("AbsTaskSTS", "cosine_spearman", "t2t"),
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
    """A task class of mteb whose data come from `load(task)`; `origin` and `version` stand for hub
    path and revision."""
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

    members = {
        "metadata": metadata,
        "load_data": load_data,
        "__module__": __name__,
        "__doc__": description,
    }
    return type(name, (getattr(abstasks, base_name),), members | dict(attributes or {}))
