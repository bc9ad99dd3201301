"""The tasks from the package index."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from layerscope_zoo.origins import Published
from layerscope_zoo.tasks import hash_split
from sklearn.feature_extraction.text import TfidfVectorizer
from tests.evaluation.tasks.support import score
from tests.shared import offline

from layerscope.errors import OfflineError, UnknownNameError
from layerscope.evaluation.tasks import TASKS, TaskSpec, resolve_tasks


def test_every_entry_is_complete() -> None:
    for name, entry in TASKS.all().items():
        assert name == entry.name
        assert entry.license
        assert entry.citation
        assert isinstance(entry.origin, Published)
        assert all(len(file.sha256 or "") == 64 for file in entry.origin.files)
    origins = [entry.origin for entry in TASKS.all().values()]
    files = [
        file.filename
        for origin in origins
        if isinstance(origin, Published)
        for file in origin.files
    ]
    assert len(files) == len(set(files))


def test_the_split_does_not_depend_on_the_order_and_shares_no_text() -> None:
    labeled = [(f"text {i}", i % 2) for i in range(1500)]
    splits = hash_split(labeled + labeled[:10])
    assert splits == hash_split(labeled[::-1])
    assert (len(splits["test"]), len(splits["train"])) == (1000, 500)
    assert not {row["text"] for row in splits["test"]} & {row["text"] for row in splits["train"]}


def test_without_network_nothing_is_fetched() -> None:
    assert not TASKS.get("SmsSpam").is_cached()
    with offline(), pytest.raises(OfflineError, match="layerscope-zoo fetch SmsSpam"):
        TASKS.get("SmsSpam").fetch()
    with offline(), pytest.raises(OfflineError, match="layerscope-zoo fetch SmsSpam"):
        TaskSpec("SmsSpam", "package").load()
    with pytest.raises(UnknownNameError, match="Did you mean 'SmsSpam'"):
        TASKS.get("SmsSpan").fetch()


def test_a_changed_file_is_not_taken(tmp_path: Path) -> None:
    folder = TASKS.get("SmsSpam").path
    folder.mkdir(parents=True)
    (folder / "sms-spam.csv").write_text(",spam,text\n0,1,win\n")
    assert not TASKS.get("SmsSpam").is_cached()


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "items", "labels"),
    [
        ("LeeSimilarity", 1225, None),
        ("SentimentSnippets", 1000, 2),
        ("SmsSpam", 1000, 2),
        ("TrecQuestions", 1000, 6),
    ],
)
def test_each_is_fetched_and_scored(name: str, items: int, labels: int | None) -> None:
    TASKS.get(name).fetch()
    assert TASKS.get(name).is_cached()
    spec = resolve_tasks(name)[0]
    loaded = spec.load()
    task = loaded.task
    facts = spec.facts(loaded)
    assert (facts["items"], facts["source"], facts["exact"]) == (items, "package", None)
    assert facts["license"] == TASKS.get(name).license
    if labels is None:
        scores = task.dataset["test"]["score"]
        assert 0 < min(scores) <= max(scores) <= 1
    else:
        for split in ("train", "test"):
            counts = Counter(task.dataset[split]["label"])
            assert sorted(counts) == list(range(labels))
            assert min(counts.values()) >= 10
        task.n_experiments = 2
    chance = {
        "TrecQuestions": 0.25,
        "SmsSpam": 0.5,
        "SentimentSnippets": 0.45,
        "LeeSimilarity": 0.0,
    }
    assert score(task)["main_score"] > chance[name]


@pytest.mark.real
def test_lees_texts_and_judgements_belong_together() -> None:
    """Texts that share rare words are the ones people find similar; shifted by a few pairs, the
    relation is gone."""
    data = resolve_tasks("LeeSimilarity")[0].load().task.dataset["test"]
    vectors = TfidfVectorizer(stop_words="english").fit(list(dict.fromkeys(data["sentence1"])))
    overlap = np.asarray(
        vectors.transform(data["sentence1"]).multiply(vectors.transform(data["sentence2"])).sum(1)
    ).ravel()
    human = np.array(data["score"])
    assert np.corrcoef(overlap, human)[0, 1] > 0.4
    assert abs(np.corrcoef(np.roll(overlap, 7), human)[0, 1]) < 0.15
