"""The paper's tasks are mteb's, under the names, types and subsets stated."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from layerscope.evaluation.tasks import PAPER_TASKS
from layerscope.evaluation.tasks.info import new_task, task_info, text_tasks
from tests.shared import shared_folder


def test_there_are_32_of_five_types() -> None:
    kinds = Counter(task.task_type for task in PAPER_TASKS.values())
    assert kinds == {
        "Classification": 10,
        "Clustering": 6,
        "PairClassification": 3,
        "Reranking": 4,
        "STS": 9,
    }


@pytest.mark.parametrize("name", sorted(PAPER_TASKS))
def test_every_name_is_mtebs(name: str) -> None:
    paper = PAPER_TASKS[name]
    metadata = text_tasks()[name].metadata
    assert metadata.type == paper.task_type
    assert set(paper.subsets) <= set(metadata.hf_subsets)
    assert set(paper.splits) <= set(metadata.eval_splits)
    assert all(
        code == "eng-Latn"
        for subset in paper.subsets
        for code in metadata.hf_subsets_to_langscripts[subset]
    )
    task = new_task(task_info(name))
    assert (tuple(task.hf_subsets), tuple(task.eval_splits)) == (paper.subsets, paper.splits)


def test_what_is_scored_is_what_mtebs_english_benchmark_scores() -> None:
    import mteb

    english = {task.metadata.name: task for task in mteb.get_benchmark("MTEB(eng, v1)").tasks}
    for name, paper in PAPER_TASKS.items():
        assert tuple(english[name].hf_subsets) == paper.subsets
        assert tuple(english[name].eval_splits) == paper.splits


def test_the_published_list() -> None:
    table = shared_folder("published", "task_dataset.csv")
    with table.open(newline="") as lines:
        published = {row["task"]: row["task_type"] for row in csv.DictReader(lines)}
    assert published == {name: task.task_type for name, task in PAPER_TASKS.items()}


def test_other_tasks_are_scored_in_english_where_they_can_be() -> None:
    assert task_info("STS22").subsets == ("en",)
    assert task_info("STS22").splits == ("test",)
    assert task_info("GermanSTSBenchmark").subsets == ("default",)
