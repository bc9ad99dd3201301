"""A sample leaves a part that mteb can still score."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from layerscope.evaluation.tasks import resolve_tasks
from layerscope.evaluation.tasks.mteb_tasks import draw
from tests.evaluation.tasks.support import WordHashEncoder, score, write_rows


def test_the_draw_keeps_order_size_and_labels() -> None:
    labels = ["a"] * 95 + ["b"] * 4 + ["c"]
    chosen = draw(100, 10, 0, labels, cover=3)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 10
    assert {labels[i] for i in chosen} == {"a", "b", "c"}
    assert draw(100, 10, 0) == draw(100, 10, 0) != draw(100, 10, 1)
    assert draw(5, 10, 0) == list(range(5))


@pytest.mark.parametrize(
    "name",
    [
        "STS12",
        "STS17",
        "MassiveScenarioClassification",
        "TwentyNewsgroupsClustering",
        "TwitterSemEval2015",
        "MyRanking",
    ],
)
def test_each_type_is_scored_with_the_smallest_sample(made_up: Path, name: str) -> None:
    spec = resolve_tasks(name, data_dir=made_up, sample=4)[0]
    loaded = spec.load()
    task = loaded.task
    facts = spec.facts(loaded)
    assert facts["items"] == 4
    assert facts["exact"] is False
    assert "sample 4" in facts["exact_reason"]
    assert 0 <= score(task)["main_score"] + 1 <= 2
    assert facts["fingerprint"] != resolve_tasks(name, data_dir=made_up)[0].facts()["fingerprint"]


def test_every_training_label_remains(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": 0 if i < 400 else i % 5} for i in range(500)]
    for split in ("train", "test"):
        write_rows(tmp_path / "EmotionClassification" / f"{split}.jsonl", rows)
    spec = resolve_tasks("EmotionClassification", data_dir=tmp_path, sample=6)[0]
    task = spec.load().task
    counts = Counter(task.dataset["train"]["label"])
    assert set(counts) == {0, 1, 2, 3, 4}
    assert counts[0] == 2 * task.samples_per_label
    numbers = [int(text.split()[1]) for text in task.dataset["train"]["text"]]
    assert numbers == sorted(numbers)


def test_only_the_documents_of_the_kept_queries_are_encoded(made_up: Path) -> None:
    task = resolve_tasks("MyRanking", data_dir=made_up, sample=4)[0].load().task
    data = task.dataset["default"]["test"]
    assert len(data["queries"]) == len(data["relevant_docs"]) == len(data["top_ranked"]) == 4
    assert len(data["corpus"]) == 4 * 12
    model = WordHashEncoder()
    score(task, model)
    assert len(model.seen) == 4 + 4 * 12
