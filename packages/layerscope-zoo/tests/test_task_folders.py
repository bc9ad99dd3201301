"""Tasks from a folder of files: mteb's own task objects, scored by mteb."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets.arrow_dataset import Column
from tests.evaluation.tasks.conftest import made_up, one_fit_thread, topic_texts
from tests.evaluation.tasks.support import WordHashEncoder, score, write_rows

from layerscope.errors import DataError
from layerscope.evaluation.scoring import listed_columns
from layerscope.evaluation.tasks import TaskSpec, reseed, resolve_tasks

__all__ = ["made_up", "one_fit_thread"]


def only(name: str, folder: Path, **options: Any) -> TaskSpec:
    return resolve_tasks(name, data_dir=folder, **options)[0]


@pytest.mark.parametrize(
    ("name", "task_type", "items", "floor"),
    [
        ("STS12", "STS", 75, 0.5),
        ("STS17", "STS", 75, 0.5),
        ("Banking77Classification", "Classification", 30, 0.8),
        ("MassiveScenarioClassification", "Classification", 30, 0.8),
        ("TwentyNewsgroupsClustering", "Clustering", 60, 0.3),
        ("TwitterSemEval2015", "PairClassification", 75, 0.6),
        ("AskUbuntuDupQuestions", "Reranking", 6, 0.8),
        ("MyRanking", "Reranking", 6, 0.8),
    ],
)
def test_each_type_is_scored(
    made_up: Path, name: str, task_type: str, items: int, floor: float
) -> None:
    spec = only(name, made_up)
    loaded = spec.load()
    task = loaded.task
    assert task.data_loaded
    found = score(task)
    assert found["main_score"] == found[task.metadata.main_score]
    assert floor < found["main_score"] <= 1
    facts = spec.facts(loaded)
    assert (facts["task_type"], facts["items"]) == (task_type, items)
    assert facts["splits"] == ["test"]
    assert facts["exact"] is (None if name == "MyRanking" else False)
    assert json.loads(json.dumps(facts)) == facts


def test_rows_keep_their_order_and_labels(made_up: Path) -> None:
    expected = [
        json.loads(line)
        for line in (made_up / "MassiveScenarioClassification/en/train.jsonl").open()
    ]
    task = only("MassiveScenarioClassification", made_up).load().task
    assert list(task.dataset["en"]["train"]) == expected
    assert task.hf_subsets == ["en"]
    numbered = only("Banking77Classification", made_up).load().task.dataset["train"]
    assert numbered["label"] == [i % 3 for i in range(60)]
    # The rows that train a classifier are those that mteb draws from the same rows given in the
    # same order.
    model = WordHashEncoder()
    score(task, model)
    shots = [text for split, text in model.seen if split == "train"]
    assert shots == sorted(shots, key=[row["text"] for row in expected].index)


@pytest.mark.parametrize(
    "name",
    [
        "Banking77Classification",
        "MassiveScenarioClassification",
        "TwentyNewsgroupsClustering",
        "TwentyNewsgroupsClustering.v2",
    ],
)
def test_columns_that_are_kept_as_lists_give_the_same_scores(
    made_up: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rows = [{"sentences": text, "labels": topic} for text, topic in topic_texts(60)]
    write_rows(made_up / "TwentyNewsgroupsClustering.v2" / "test.jsonl", rows)
    expected = score(only(name, made_up).load().task)
    keys: list[Any] = []
    look_up = Column.__getitem__
    monkeypatch.setattr(
        Column, "__getitem__", lambda self, key: keys.append(key) or look_up(self, key)
    )
    with listed_columns():
        assert score(only(name, made_up).load().task) == expected
    assert keys.count(slice(None)) == len(keys) > 0


def test_two_labels_become_0_and_1(tmp_path: Path) -> None:
    rows = [
        {"text": text, "label": "yes" if topic == "cats" else "no"}
        for text, topic in topic_texts(60)
    ]
    for split in ("train", "test"):
        write_rows(tmp_path / "Mine" / f"{split}.jsonl", rows)
    spec = only("Mine", tmp_path)
    loaded = spec.load()
    task = loaded.task
    assert spec.facts(loaded)["label_codes"] == {"no": 0, "yes": 1}
    assert score(task)["ap"] > 0.5


def test_clustering_takes_sets_or_single_texts_for_both_of_mtebs_classes(tmp_path: Path) -> None:
    texts = topic_texts(60)
    single = [{"sentences": text, "labels": topic} for text, topic in texts]
    sets = [{"sentences": [t for t, _ in texts], "labels": [x for _, x in texts]}] * 2
    for number, rows in enumerate((single, sets)):
        for name in ("RedditClustering", "RedditClustering.v2"):
            write_rows(tmp_path / str(number) / name / "test.jsonl", rows)
    legacy = [only("RedditClustering", tmp_path / n).load().task.dataset["test"] for n in "01"]
    assert [len(data) for data in legacy] == [1, 2]
    fast = [only("RedditClustering.v2", tmp_path / n).load().task for n in "01"]
    assert [len(task.dataset["test"]) for task in fast] == [60, 60]
    fast[0].max_fraction_of_documents_to_embed, fast[0].max_document_to_embed = None, 30
    fast[0].max_documents_per_cluster = 40
    first = score(fast[0])
    assert score(fast[0])["v_measures"] != first["v_measures"]  # the generator has moved on
    reseed(fast[0])
    assert score(fast[0])["v_measures"] == first["v_measures"]


def test_pairs_in_one_row_of_lists(tmp_path: Path, made_up: Path) -> None:
    rows = [dict(row) for row in only("TwitterSemEval2015", made_up).load().task.dataset["test"]]
    columns = {"sent1": [r["sentence1"] for r in rows], "sent2": [r["sentence2"] for r in rows]}
    write_rows(
        tmp_path / "TwitterURLCorpus" / "test.jsonl",
        [columns | {"labels": [r["labels"] for r in rows]}],
    )
    assert list(only("TwitterURLCorpus", tmp_path).load().task.dataset["test"]) == rows


def test_reranking_leaves_out_queries_with_nothing_to_rank(tmp_path: Path) -> None:
    rows = [
        {"query": ["cats", "more cats"], "positive": ["cat purrs"], "negative": ["train", "bread"]},
        {"query": "trains", "positive": [], "negative": ["cat"]},
        {"query": "bread", "positive": ["bread oven", "dough bread"], "negative": ["rails"]},
    ]
    write_rows(tmp_path / "MindSmallReranking" / "test.jsonl", rows)
    spec = only("MindSmallReranking", tmp_path)
    loaded = spec.load()
    task = loaded.task
    data = task.dataset["default"]["test"]
    assert data["queries"]["id"] == ["test-000000_0", "test-000000_1", "test-000002_0"]
    assert data["relevant_docs"]["test-000002_0"] == {
        "a000002-00000": 1,
        "a000002-00001": 1,
        "n000002-00000": 0,
    }
    assert set(data["top_ranked"]["test-000000_1"]) == set(data["relevant_docs"]["test-000000_0"])
    assert spec.facts(loaded)["dropped_queries"] == {"test": 1}
    assert 0 < score(task)["max_over_subqueries_map_at_1000"] <= 1


def test_a_stand_in_is_recorded(made_up: Path) -> None:
    facts = only("TwentyNewsgroupsClustering", made_up).facts()
    assert facts["stand_ins"] == {"test": "rebuilt"}
    assert facts["exact"] is False
    assert "test_rebuilt.jsonl.gz" in facts["exact_reason"]
    write_rows(
        made_up / "TwentyNewsgroupsClustering" / "test.jsonl",
        [{"sentences": ["a", "b"], "labels": [0, 1]}],
    )
    facts = only("TwentyNewsgroupsClustering", made_up).facts()
    assert "stand_ins" not in facts
    assert facts["exact"] is False
    assert facts["exact_reason"].startswith("split 'test' differs in its rows: 2, MTEB has")


def test_the_fingerprint_follows_the_data(made_up: Path) -> None:
    spec = only("Banking77Classification", made_up)
    before = spec.facts()["fingerprint"]
    assert spec.facts()["fingerprint"] == before
    path = made_up / "Banking77Classification" / "train.jsonl.gz"
    rows = [{"text": text, "label": i % 3} for i, (text, _) in enumerate(topic_texts(60))]
    write_rows(path, [row | {"label_text": "more"} for row in rows])
    assert spec.facts()["fingerprint"] == before  # a column that scoring does not read
    write_rows(path, rows[::-1])
    reordered = spec.facts()["fingerprint"]
    write_rows(path, [*rows[:-1], {"text": "other", "label": 2}])
    assert len({before, reordered, spec.facts()["fingerprint"]}) == 3
    own = only("MyRanking", made_up)
    first = own.facts()
    write_rows(
        made_up / "MyRanking" / "test.jsonl.gz",
        [{"query": "q", "positive": ["a"], "negative": ["b"]}],
    )
    second = own.facts()
    assert first["fingerprint"] != second["fingerprint"]
    assert first["revision"] != second["revision"]


@pytest.mark.parametrize(
    ("name", "split", "content", "message"),
    [
        (
            "STS12",
            "test",
            b'{"sentence1": "a", "score": 1}',
            "'sentence2' must be a text, but is missing",
        ),
        (
            "STS12",
            "test",
            b'{"sentence1": "a", "sentence2": "b", "score": "1"}',
            "'score' must be a finite number, but is '1'",
        ),
        (
            "STS12",
            "test",
            b'{"sentence1": "a", "sentence2": "b", "score": NaN}',
            "'score' must be a finite number, but is nan",
        ),
        (
            "TwentyNewsgroupsClustering",
            "test",
            b'{"sentences": "a", "labels": null}',
            "a label is a text or a number, not None",
        ),
        (
            "TwentyNewsgroupsClustering",
            "test",
            b'{"sentences": ["a", "b"], "labels": ["x", NaN]}',
            "a label is a text or a number, not nan",
        ),
        (
            "STS12",
            "test",
            b'{"sentence1": "a", "sentence2": "b", "score": 1}\n{oops',
            "line 2 is not valid JSON",
        ),
        ("STS12", "test", b"[1]", "line 1 is list"),
        ("STS12", "test", b"\n", "holds no rows"),
        ("STS12", "test", b"\xff\xfe", "is not utf-8: byte 0xff"),
        ("Banking77Classification", "test", b'{"text": null, "label": 1}', "'text' must be a text"),
        (
            "Banking77Classification",
            "test",
            b'{"text": "a", "label": 1}\n{"text": "b", "label": "c"}',
            "'label' must be a whole number, but is 'c'",
        ),
        (
            "TwitterSemEval2015",
            "test",
            b'{"sentence1": "a", "sentence2": "b", "labels": 1}',
            "both 0 and 1",
        ),
        (
            "AskUbuntuDupQuestions",
            "test",
            b'{"query": "a", "positive": "b", "negative": []}',
            "'positive' must be a list",
        ),
        (
            "AskUbuntuDupQuestions",
            "test",
            b'{"query": "a", "positive": ["b"], "negative": []}',
            "no query",
        ),
        (
            "TwentyNewsgroupsClustering",
            "test",
            b'{"sentences": ["a"], "labels": []}',
            "same length",
        ),
    ],
)
def test_wrong_data_are_explained(
    made_up: Path, name: str, split: str, content: bytes, message: str
) -> None:
    for old in (made_up / name).glob(f"{split}*"):
        old.unlink()
    (made_up / name / f"{split}.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=message):
        only(name, made_up).load()


def test_a_damaged_archive_and_a_vanished_folder_are_explained(made_up: Path) -> None:
    path = made_up / "STS12" / "test.jsonl.gz"
    path.write_bytes(path.read_bytes()[:200])
    spec = only("STS12", made_up)
    with pytest.raises(DataError, match="damaged"):
        spec.load()
    path.unlink()
    with pytest.raises(DataError, match="no longer has"):
        spec.load()


def test_types_without_a_layout_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "SummEval" / "test.jsonl", [{"text": "a"}])
    with pytest.raises(DataError, match="type Summarization"):
        only("SummEval", tmp_path).load()
