"""Real data of all five types from the folder beside the repository, where it exists."""

from __future__ import annotations

import gzip
import json

import pytest
from tests.evaluation.tasks.support import score, shared_data

from layerscope.evaluation.tasks import resolve_tasks

EXACT = [
    "Banking77Classification",
    "EmotionClassification",
    "MassiveScenarioClassification",
    "STS17",
    "STSBenchmark",
]


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("STS12", 3108),
        ("STS17", 250),
        ("Banking77Classification", 3080),
        ("MassiveScenarioClassification", 2974),
        ("TwentyNewsgroupsClustering", 59545),
        ("TwitterSemEval2015", 4980),
        ("WikiQA_reranking", 237),
    ],
)
def test_each_type_loads_and_is_scored(name: str, items: int) -> None:
    folder = shared_data()
    assert resolve_tasks(name, data_dir=folder)[0].facts()["items"] == items
    task = resolve_tasks(name, data_dir=folder, sample=20)[0].load().task
    if hasattr(task, "n_experiments"):
        task.n_experiments = 2
    assert -1 <= score(task)["main_score"] <= 1


def test_mtebs_own_splits_are_recognised() -> None:
    folder = shared_data()
    names = [path.name for path in folder.iterdir()]
    exact = [spec.name for spec in resolve_tasks(names, data_dir=folder) if spec.facts()["exact"]]
    assert sorted(exact) == EXACT


def test_rows_are_the_files() -> None:
    folder = shared_data()
    with gzip.open(
        folder / "Banking77Classification" / "train.jsonl.gz", "rt", encoding="utf-8"
    ) as lines:
        rows = [json.loads(line) for line in lines]
    train = (
        resolve_tasks("Banking77Classification", data_dir=folder)[0].load().task.dataset["train"]
    )
    assert train["text"] == [row["text"] for row in rows]
    assert train["label"] == [row["label"] for row in rows]
