"""The 32 English tasks of the paper's Table 1, by their names in mteb.

Several have a corrected successor in mteb (`….v2`, hierarchical arXiv). The originals are kept: they are what the
paper's scores were measured on. Every task is scored on its English test split only, although mteb would also run
the validation split, or other languages, of some.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

TaskType = Literal["Classification", "Clustering", "PairClassification", "Reranking", "STS"]

MONOLINGUAL = ("default",)
"""The one subset of a task whose dataset has no languages to choose from."""


@dataclass(frozen=True)
class PaperTask:
    """One task: its type and what of it is scored."""

    name: str
    task_type: TaskType
    subsets: tuple[str, ...] = MONOLINGUAL
    splits: tuple[str, ...] = ("test",)


_TASKS = (
    # `en-ext` is English as well: more, synthetic, counterfactuals. MTEB's English benchmark uses `en`.
    PaperTask("AmazonCounterfactualClassification", "Classification", ("en",)),
    PaperTask("AmazonReviewsClassification", "Classification", ("en",)),
    PaperTask("Banking77Classification", "Classification"),
    PaperTask("EmotionClassification", "Classification"),
    PaperTask("MTOPDomainClassification", "Classification", ("en",)),
    PaperTask("MTOPIntentClassification", "Classification", ("en",)),
    PaperTask("MassiveIntentClassification", "Classification", ("en",)),
    PaperTask("MassiveScenarioClassification", "Classification", ("en",)),
    PaperTask("ToxicConversationsClassification", "Classification"),
    PaperTask("TweetSentimentExtractionClassification", "Classification"),
    PaperTask("ArxivClusteringS2S", "Clustering"),
    PaperTask("BiorxivClusteringS2S", "Clustering"),
    PaperTask("MedrxivClusteringS2S", "Clustering"),
    PaperTask("RedditClustering", "Clustering"),
    PaperTask("StackExchangeClustering", "Clustering"),
    PaperTask("TwentyNewsgroupsClustering", "Clustering"),
    PaperTask("SprintDuplicateQuestions", "PairClassification"),
    PaperTask("TwitterSemEval2015", "PairClassification"),
    PaperTask("TwitterURLCorpus", "PairClassification"),
    PaperTask("AskUbuntuDupQuestions", "Reranking"),
    PaperTask("MindSmallReranking", "Reranking"),
    PaperTask("SciDocsRR", "Reranking"),
    PaperTask("StackOverflowDupQuestions", "Reranking"),
    PaperTask("BIOSSES", "STS"),
    PaperTask("SICK-R", "STS"),
    PaperTask("STS12", "STS"),
    PaperTask("STS13", "STS"),
    PaperTask("STS14", "STS"),
    PaperTask("STS15", "STS"),
    PaperTask("STS16", "STS"),
    PaperTask("STS17", "STS", ("en-en",)),
    PaperTask("STSBenchmark", "STS"),
)

PAPER_TASKS: dict[str, PaperTask] = {task.name: task for task in _TASKS}
