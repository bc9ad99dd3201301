"""One thread for the small fits of mteb's classifiers, and small folders of made-up tasks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from threadpoolctl import threadpool_limits

from tests.evaluation.tasks.support import write_rows

TOPICS = {
    "cats": "cat purrs whiskers kitten paws",
    "trains": "train rails station engine ticket",
    "bread": "bread oven flour dough crust",
}


def topic_texts(count: int) -> list[tuple[str, str]]:
    """(text, topic), the topics in turn."""
    names = list(TOPICS)
    found = []
    for i in range(count):
        words = TOPICS[names[i % 3]].split()
        found.append(
            (f"{words[i % 5]} {words[(i + 1) % 5]} {words[(i // 3) % 5]} number {i}", names[i % 3])
        )
    return found


def overlap(first: str, second: str) -> float:
    """Shared words, from 0 to 5."""
    one, two = set(first.split()), set(second.split())
    return round(5 * len(one & two) / len(one | two), 2)


@pytest.fixture(autouse=True)
def one_fit_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A data folder with a task of each type and layout."""
    folder = tmp_path / "data"
    texts = topic_texts(60)
    pairs = [(texts[i][0], texts[(i * step + 3) % 60][0]) for step in (1, 7, 16) for i in range(25)]
    scored = [{"sentence1": a, "sentence2": b, "score": overlap(a, b)} for a, b in pairs]
    write_rows(folder / "STS12" / "test.jsonl.gz", scored)
    write_rows(folder / "STS17" / "test.jsonl", scored)
    labeled = [{"text": text, "label": list(TOPICS).index(topic)} for text, topic in texts]
    write_rows(folder / "Banking77Classification" / "train.jsonl.gz", labeled)
    write_rows(folder / "Banking77Classification" / "test.jsonl.gz", labeled[:30])
    named = [{"text": text, "label": topic} for text, topic in texts]
    write_rows(folder / "MassiveScenarioClassification" / "en" / "train.jsonl", named)
    write_rows(folder / "MassiveScenarioClassification" / "en" / "test.jsonl", named[:30])
    sets = [
        {"sentences": [t for t, _ in part], "labels": [x for _, x in part]}
        for part in (texts[:30], texts[30:])
    ]
    write_rows(folder / "TwentyNewsgroupsClustering" / "test_rebuilt.jsonl.gz", sets)
    binary = [{"sentence1": a, "sentence2": b, "labels": int(overlap(a, b) > 2)} for a, b in pairs]
    write_rows(folder / "TwitterSemEval2015" / "test.jsonl.gz", binary)
    ranking = [
        {
            "query": f"{words} please",
            "positive": [t for t, x in texts[:12] if x == topic],
            "negative": [t for t, x in texts[:12] if x != topic],
        }
        for topic, words in TOPICS.items()
    ] * 2
    write_rows(folder / "AskUbuntuDupQuestions" / "test.jsonl.gz", ranking)
    write_rows(folder / "MyRanking" / "test.jsonl.gz", ranking)
    return folder
