"""Tasks of one's own, read by the core alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.errors import DataError, UnknownNameError
from layerscope.evaluation.tasks import SOURCES, resolve_tasks
from layerscope.extras import MissingExtraError
from tests.evaluation.tasks.conftest import overlap, topic_texts
from tests.evaluation.tasks.support import score, write_rows


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other package reads folders."""
    SOURCES.load()
    monkeypatch.delitem(SOURCES._things, "mteb files")


def test_each_type_is_scored(tmp_path: Path) -> None:
    texts = topic_texts(60)
    pairs = [(texts[i][0], texts[(i * step + 3) % 60][0]) for step in (1, 7, 16) for i in range(25)]
    scored = [{"sentence1": a, "sentence2": b, "score": overlap(a, b)} for a, b in pairs]
    linked = [{"sentence1": a, "sentence2": b, "labels": int(overlap(a, b) > 2)} for a, b in pairs]
    classes = [{"text": text, "label": "cat" if topic == "cats" else "no"} for text, topic in texts]
    write_rows(tmp_path / "Scored" / "test.jsonl", scored)
    write_rows(tmp_path / "Linked" / "test.jsonl.gz", linked)
    for split in ("train", "test"):
        write_rows(tmp_path / "Classes" / f"{split}.jsonl", classes)
    specs = resolve_tasks("Scored,Linked,Classes", data_dir=tmp_path)
    facts = [spec.facts() for spec in specs]
    assert [told["task_type"] for told in facts] == ["STS", "PairClassification", "Classification"]
    assert [told["items"] for told in facts] == [75, 75, 60]
    assert facts[2]["label_codes"] == {"cat": 0, "no": 1}
    assert all(score(spec.load().task)["main_score"] > 0.5 for spec in specs)
    write_rows(tmp_path / "Scored" / "test.jsonl", scored[1:])
    assert specs[0].facts()["revision"] != facts[0]["revision"]
    (tmp_path / "Scored" / "test.jsonl").unlink()
    with pytest.raises(DataError, match="no longer holds"):
        specs[0].load()


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    write_rows(tmp_path / "Odd" / "test.jsonl", [{"words": 1}])
    with pytest.raises(DataError, match="no known layout"):
        resolve_tasks("Odd", data_dir=tmp_path)
    write_rows(tmp_path / "Half" / "test.jsonl", [{"text": "a", "label": 0}])
    with pytest.raises(DataError, match=r"no train\.jsonl\.gz"):
        resolve_tasks("Half", data_dir=tmp_path)[0].load()
    (tmp_path / "Empty").mkdir()
    with pytest.raises(UnknownNameError):
        resolve_tasks("Empty", data_dir=tmp_path)
    write_rows(tmp_path / "STS12" / "test.jsonl", [{"sentence1": "a"}])
    with pytest.raises(MissingExtraError, match="zoo"):
        resolve_tasks("STS12", data_dir=tmp_path)
