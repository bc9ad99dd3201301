"""The paper's tasks are mteb's, under the names, types and subsets stated."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from layerscope.evaluation.tasks import PAPER
from layerscope.evaluation.tasks.mteb_tasks import mteb_task, text_tasks
from tests.shared import shared_folder

SUBSETS = {
    "AmazonCounterfactualClassification": "en",
    "AmazonReviewsClassification": "en",
    "MTOPDomainClassification": "en",
    "MTOPIntentClassification": "en",
    "MassiveIntentClassification": "en",
    "MassiveScenarioClassification": "en",
    "STS17": "en-en",
}
"""The one subset that is scored where a task has several. `en-ext` is English as well: more,
synthetic, counterfactuals."""


def test_there_are_32_of_five_types() -> None:
    kinds = Counter(text_tasks()[name].metadata.type for name in PAPER)
    assert kinds == {
        "Classification": 10,
        "Clustering": 6,
        "PairClassification": 3,
        "Reranking": 4,
        "STS": 9,
    }


@pytest.mark.parametrize("name", sorted(PAPER))
def test_the_english_test_split_is_scored(name: str) -> None:
    task = mteb_task(name)
    assert task.hf_subsets == [SUBSETS.get(name, "default")]
    assert list(task.eval_splits) == ["test"]
    languages = task.metadata.hf_subsets_to_langscripts
    assert all(code == "eng-Latn" for subset in task.hf_subsets for code in languages[subset])


def test_the_published_list() -> None:
    table = shared_folder("published", "task_dataset.csv")
    with table.open(newline="") as lines:
        published = {row["task"]: row["task_type"] for row in csv.DictReader(lines)}
    assert published == {name: text_tasks()[name].metadata.type for name in PAPER}


def test_other_tasks_are_scored_in_english_where_they_can_be() -> None:
    assert mteb_task("STS22").hf_subsets == ["en"]
    assert list(mteb_task("STS22").eval_splits) == ["test"]
    assert mteb_task("GermanSTSBenchmark").hf_subsets == ["default"]
