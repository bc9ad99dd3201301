"""The study of heads by layer: what is scored, what is fitted on, and what the intervals are over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import study_heads as heads
from scipy.stats import spearmanr
from study_heads import DRAWS, READINGS, Found, HeadsByLayer, HeadTask, read_task

from layerscope.core.heads import Ridge, make_target
from layerscope.errors import DataError, InvalidValueError
from layerscope.evaluation.tasks.resolve import resolve_tasks
from layerscope.studies.base import STUDIES
from layerscope.studies.run import StudyRun, study
from tests.evaluation.support import write_tasks
from tests.tiny import tiny_model


@pytest.fixture(autouse=True, scope="module")
def with_the_study() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STUDIES, "_things", {**STUDIES.all(), "heads": HeadsByLayer()})
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"), pairs=60, texts=120)


@pytest.fixture(scope="module")
def whole(data: Path, with_the_study: None) -> StudyRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "LEAST_TEXTS", 10)
        return study(
            "heads", tiny_model("llama"), max_length=64, tasks="Pairs,Topics,Sets,Ranking", data_dir=str(data), items=20, seed=1
        )


@pytest.mark.parametrize(("name", "pairs"), [("Pairs", True), ("Topics", False), ("Sets", False), ("TwitterSemEval2015", True)])
def test_no_text_is_both_scored_and_fitted_on(data: Path, name: str, pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "LEAST_TEXTS", 10)
    (spec,) = resolve_tasks(name, data_dir=str(data))
    task = read_task(spec, 20, 50, 0)
    assert task.pairs == pairs
    assert task.count == 20
    assert len(task.texts) == (40 if pairs else 20)
    assert not set(task.texts) & set(task.fit)
    assert 10 <= len(task.fit) <= 50
    assert len(set(task.fit)) == len(task.fit)


def test_too_few_texts_and_other_types_are_named(data: Path, whole: StudyRun) -> None:
    (spec,) = resolve_tasks("Topics", data_dir=str(data))
    with pytest.raises(DataError, match=r"Topics has \d+ texts that are not scored; a head takes 200"):
        read_task(spec, 20, 400, 0)
    (note,) = whole.manifest["warnings"]
    assert note == "Ranking is a task of the type Reranking; heads are compared on classes and pairs. It is left out."
    with pytest.raises(DataError, match="none of the tasks can be used: Ranking"):
        study("heads", tiny_model("llama"), tasks="Ranking", data_dir=str(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heads, "LEAST_TEXTS", 10)
        with pytest.raises(InvalidValueError, match="template=plain cannot teach"):
            study("heads", tiny_model("llama"), tasks="Topics", data_dir=str(data), template="plain", items=20)


def test_every_layer_is_scored_under_every_reading(whole: StudyRun) -> None:
    table = whole.table
    scores = table[table["kind"] == "score"]
    assert len(scores) == 3 * 4 * 4  # tasks, readings, layers
    means = table[table["kind"] == "mean"].set_index(["reading", "layer"])["value"]
    for (reading, layer), mean in means.items():
        own = scores[(scores["reading"] == reading) & (scores["layer"] == layer)]["value"]
        assert mean == pytest.approx(own.mean(), nan_ok=True) or np.isnan(own).any()
    assert np.isnan(means["prompt", 0])  # a prompt's last token is the same for all texts there
    bands = table[(table["kind"] == "mean") & table["value"].notna()]
    assert ((bands["ci_low"] <= bands["value"]) & (bands["value"] <= bands["ci_high"])).all()
    assert whole.verdict[0].startswith("In short: through a head the middle half of the layers clearly beats the last layer in")
    assert len(whole.plot().axes) == 1


def test_scores_are_neighbors_of_the_same_class_and_rank_correlations() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 15)
    apart = heads.unit(np.eye(2)[labels] + 0.01 * rng.normal(size=(30, 2)))
    score, draws = heads._score(HeadTask("a", [""] * 30, labels, [], False), apart, 0)
    assert score == 1
    np.testing.assert_allclose(draws, 1)
    vectors = heads.unit(rng.normal(size=(60, 4)))
    gold = rng.normal(size=30)
    score, draws = heads._score(HeadTask("b", [""] * 60, gold, [], True), vectors, 0)
    assert score == pytest.approx(spearmanr((vectors[:30] * vectors[30:]).sum(1), gold).statistic)
    assert len(draws) == DRAWS
    assert draws.std() > 0.05


def test_a_head_is_fitted_on_the_other_texts_alone() -> None:
    rng = np.random.default_rng(0)
    plain, prompted = rng.normal(size=(50, 6)).astype(np.float32), rng.normal(size=(50, 6)).astype(np.float32)
    target = make_target(prompted[20:])
    found = heads._vectors(plain, prompted, target, 20)
    changed = plain.copy()
    changed[1:20] += 3  # what other scored texts are does not matter
    again = heads._vectors(changed, prompted, target, 20)
    for reading, one, other in zip(READINGS, found, again, strict=True):
        np.testing.assert_allclose(one[0], other[0], err_msg=reading)
    np.testing.assert_allclose(found[3], heads.unit(Ridge(plain[20:], target).head()(plain[:20])))


def test_the_layer_of_a_task_is_chosen_on_the_others() -> None:
    score = np.zeros((3, 4, 4))
    score[:, 3] = [[0, 9, 1, 0], [0, 1, 5, 0], [0, 1, 5, 0]]  # heads: the first task likes layer 1, the others layer 2
    found = Found("a", ["x", "y", "z"], score, np.repeat(score[..., None], DRAWS, -1))
    assert found.best("head") == 2  # of two layers with the same mean the later
    assert found.chosen("head") == [2, 1, 1]
    assert found.gain("head", 0).value == pytest.approx((1 + 1 + 1) / 3)
    assert found.gain("head", 0, "plain", 3).value == pytest.approx(1)
    middle = found.middle("head", 0)  # layers 1 and 2 of 3
    assert middle.value == pytest.approx((5 + 3 + 3) / 3)
    assert middle.sign == 1
    flat = found.over_tasks(np.array([1.0, 1.0]), np.ones((2, DRAWS)), 0)
    assert (flat.low, flat.high) == (1, 1)
    apart = found.over_tasks(np.array([0.0, 4.0]), np.repeat([[0.0], [4.0]], DRAWS, 1), 0)
    assert (apart.low, apart.high) == (0, 4)  # either task may be drawn twice
