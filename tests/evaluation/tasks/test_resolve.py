"""Names become specs, and everything that is wrong is said before anything is loaded."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest

from layerscope.errors import DataError, InvalidValueError, UnknownNameError
from layerscope.evaluation.tasks import PAPER, TaskSpec, expand_names, resolve_tasks
from tests.evaluation.tasks.support import write_rows


def test_names_come_as_a_list_or_between_commas() -> None:
    assert expand_names("STS12, STS13,STS12") == ["STS12", "STS13"]
    assert expand_names(["STS13", "STS12,BIOSSES"]) == ["STS13", "STS12", "BIOSSES"]
    assert expand_names("paper") == list(PAPER)
    assert expand_names("small") == [
        "LeeSimilarity",
        "SentimentSnippets",
        "SmsSpam",
        "TrecQuestions",
    ]
    for nothing in ("", " , ", []):
        with pytest.raises(DataError, match="no task was named"):
            resolve_tasks(nothing)
    with pytest.raises(InvalidValueError, match="must be strings"):
        resolve_tasks([3])  # type: ignore[list-item]


def test_data_in_the_folder_come_first_and_the_rest_from_the_hub(made_up: Path) -> None:
    specs = resolve_tasks("STS12,STS13,MyRanking,SmsSpam", data_dir=made_up, sample=10, seed=3)
    assert [(spec.name, spec.source) for spec in specs] == [
        ("STS12", "mteb files"), ("STS13", "hub"), ("MyRanking", "mteb files"), ("SmsSpam", "package")
    ]  # fmt: skip
    assert specs[0] == TaskSpec("STS12", "mteb files", str(made_up / "STS12"), 10, 3)


def test_unknown_names_get_the_nearest(made_up: Path) -> None:
    for name, near in [
        ("STS-Benchmark", "STSBenchmark"),
        ("SmsSpm", "SmsSpam"),
        ("myranking", "MyRanking"),
        ("papr", "paper"),
    ]:
        with pytest.raises(UnknownNameError) as caught:
            resolve_tasks(["STS12", name], data_dir=made_up)
        assert caught.value.nearest == near
        assert len(str(caught.value)) < 600
    with pytest.raises(UnknownNameError):
        resolve_tasks("../data/STS12", data_dir=made_up)


def test_a_task_of_averages_names_its_parts() -> None:
    (spec,) = resolve_tasks("CQADupstackRetrieval")
    with pytest.raises(DataError, match="CQADupstackAndroidRetrieval"):
        spec.load()


@pytest.mark.parametrize("sample", [0, 3, -1, True, 2.5])
def test_a_sample_that_cannot_be_scored_is_refused(sample: int) -> None:
    with pytest.raises(InvalidValueError, match="4 or more"):
        resolve_tasks("STS12", sample=sample)


def test_a_data_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        resolve_tasks("STS12", data_dir=tmp_path / "nowhere")


def test_incomplete_or_ambiguous_folders_are_refused_at_once(tmp_path: Path) -> None:
    write_rows(tmp_path / "EmotionClassification" / "test.jsonl", [{"text": "a", "label": 0}])
    with pytest.raises(DataError, match=r"no train\.jsonl\.gz"):
        resolve_tasks("EmotionClassification", data_dir=tmp_path)
    for name in ("test_a.jsonl", "test_b.jsonl"):
        write_rows(tmp_path / "STS13" / name, [{}])
    with pytest.raises(DataError, match="several files"):
        resolve_tasks("STS13", data_dir=tmp_path)
    write_rows(tmp_path / "Odd" / "test.jsonl", [{"words": 1}])
    with pytest.raises(DataError, match="no known layout"):
        resolve_tasks("Odd", data_dir=tmp_path)


def test_specs_travel(made_up: Path) -> None:
    for spec in resolve_tasks("STS12,MyRanking", data_dir=made_up, sample=8):
        assert pickle.loads(pickle.dumps(spec)) == spec
        assert TaskSpec(**json.loads(json.dumps(asdict(spec)))) == spec
        assert len(pickle.dumps(spec)) < 500
