"""Tasks from the hub: mteb loads them itself; here its loader is replaced, so that no network is
needed."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from mteb.abstasks.abstask import AbsTask

from layerscope.errors import DownloadError, OfflineError
from layerscope.evaluation.tasks import TaskSpec, resolve_tasks
from tests.evaluation.tasks.support import score
from tests.shared import offline


def load_with(monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    """Make every task's data `data`, or make loading fail with it."""

    def load_data(self: Any, *_: Any, **__: Any) -> None:
        if isinstance(data, Exception):
            raise data
        self.dataset, self.data_loaded = data, True

    monkeypatch.setattr(AbsTask, "load_data", load_data)


def pairs(count: int) -> Dataset:
    texts = [f"word{i % 5} word{i % 3} more" for i in range(count)]
    return Dataset.from_dict(
        {
            "sentence1": texts,
            "sentence2": texts[1:] + texts[:1],
            "score": [i % 6 for i in range(count)],
            "extra": texts,
        }
    )


def test_the_pinned_revision_is_exact_and_a_part_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    load_with(monkeypatch, DatasetDict({"train": pairs(3), "test": pairs(40)}))
    facts = TaskSpec("STS13", "hub").facts()
    assert (facts["exact"], facts["items"]) == (True, 40)
    assert facts["exact_reason"] == "the revision that mteb pins"
    assert facts["dataset"] == "mteb/sts13-sts"
    assert len(facts["revision"]) == 40
    spec = resolve_tasks("STS13", sample=10)[0]
    loaded = spec.load()
    task = loaded.task
    assert (spec.facts(loaded)["exact"], spec.facts(loaded)["items"]) == (False, 10)
    assert -1 <= score(task)["main_score"] <= 1


def test_only_the_english_subset_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    load_with(
        monkeypatch,
        {"en-en": DatasetDict({"test": pairs(40)}), "es-es": DatasetDict({"test": pairs(5)})},
    )
    spec = resolve_tasks("STS17", sample=30)[0]
    assert (spec.facts()["items"], spec.facts()["subsets"]) == (30, ["en-en"])


def test_failures_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    load_with(monkeypatch, ConnectionError("no route"))
    with pytest.raises(DownloadError, match=r"mteb/sts13-sts.*no route.*a folder"):
        TaskSpec("STS13", "hub").load()
    with offline(), pytest.raises(OfflineError, match="downloads are off"):
        TaskSpec("STS13", "hub").load()
