"""mteb's task objects: its own, set to what is scored of them, and new ones for other data.

Every task is scored on its English subsets. The paper's tasks are scored on the subsets and splits
of MTEB's English benchmark, although mteb would also run the validation split of some.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from layerscope.errors import DataError
from layerscope.extras import missing

__all__ = ["is_mteb_task", "make_task", "mteb_task", "needed_splits"]

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
    """Return whether mteb has a text task of this name; the paper's are known without mteb."""
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
    *,
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
