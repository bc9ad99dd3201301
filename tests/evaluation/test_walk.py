"""Many tasks as one plan: the order and what goes on at the same time change no number, and a task that fails stops no other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope import Evaluation, evaluate
from layerscope.errors import RunFolderError
from layerscope.evaluation import steps, walk
from layerscope.evaluation.device_scoring import DeviceScoring
from layerscope.evaluation.encode import EncodePass
from layerscope.evaluation.scoring import ScoringContext
from layerscope.evaluation.walk import Means
from tests.evaluation.support import TASKS, watch, write_tasks
from tests.tiny import tiny_model

pytestmark = [pytest.mark.usefixtures("few_experiments"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    data = write_tasks(tmp_path / "data", pairs=60, texts=60)
    return {"data_dir": data, "store": tmp_path / "store", "layers": [0, -1], "scoring_workers": 0, "scoring": "device"}


@pytest.fixture
def in_steps() -> Iterator[pytest.MonkeyPatch]:
    """A step per task, and scoring beside the encoding, as on a GPU; until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "TOGETHER", 1)
        patch.setattr(steps, "_TIMED", 4)
        patch.setattr(Means, "apart", property(lambda self: True))
        yield patch


def same(a: Evaluation, b: Evaluation) -> None:
    # a text goes through the model in another batch, so that last digits may differ
    pd.testing.assert_frame_equal(a.scores, b.scores, atol=1e-6, rtol=0)
    pd.testing.assert_frame_equal(a.gains, b.gains, atol=1e-5, rtol=0)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What is encoded and scored, in which thread."""
    log: list[tuple[str, str, int]] = []
    encode, run = walk.Walk._encode, DeviceScoring.run

    def encoded(self: walk.Walk, step: steps.Step) -> None:
        log.append(("encode", step.tasks[0], threading.get_ident()))
        encode(self, step)

    def scored(self: DeviceScoring, context: ScoringContext, jobs: Any) -> Any:
        if jobs and not context.timed:
            log.append(("score", jobs[0].task.name, threading.get_ident()))
        return run(self, context, jobs)

    monkeypatch.setattr(walk.Walk, "_encode", encoded)
    monkeypatch.setattr(DeviceScoring, "run", scored)
    return log


def test_steps_side_by_side_give_the_scores_of_one_after_the_other(
    given: dict[str, Any], in_steps: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = noted(in_steps)
    run = evaluate(tiny_model(), TASKS, **given)
    assert sorted(name for what, name, _ in log if what == "encode") == sorted(TASKS)
    # the first task is scored after it was encoded, in another thread, and the encoding is at most one task ahead
    for i, (what, name, thread) in enumerate(log):
        assert (thread == threading.get_ident()) == (what == "encode")
        if what == "score":
            assert ("encode", name) in [entry[:2] for entry in log[:i]]
    assert "this should take" in caplog.text
    assert run.manifest["estimate"]["seconds"] > 0
    assert run.manifest["estimate"]["score"] > 0
    in_steps.undo()
    whole = evaluate(tiny_model(), TASKS, **{**given, "store": given["store"].with_name("other")})
    assert "estimate" not in whole.manifest  # one step: nothing is timed
    assert whole.manifest["counts"]["encoded"] == run.manifest["counts"]["encoded"]
    assert whole.manifest["counts"]["truncated"] == run.manifest["counts"]["truncated"]
    same(run, whole)


def test_the_longest_task_comes_first_and_small_ones_go_together() -> None:
    turn: Any = type("Turn", (), {"tasks": ("a", "b", "c", "d"), "sites": ()})()
    texts = {"a": ["x"] * 5, "b": ["x" * 50] * 13_000, "c": ["x"] * 13_000, "d": ["x"] * 20}
    assert [step.tasks for step in steps.steps_of([turn], texts, 256)] == [("b",), ("c",), ("d", "a")]


@pytest.mark.usefixtures("in_steps")
def test_a_task_that_cannot_be_encoded_stops_no_other(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = walk.Walk._encode

    def fails(self: walk.Walk, step: steps.Step) -> None:
        if "Pairs" in step.tasks:
            raise ValueError("a state is not finite")
        encode(self, step)

    monkeypatch.setattr(walk.Walk, "_encode", fails)
    run = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    assert run.failed == [{"task": "Pairs", "reason": "ValueError: a state is not finite"}]
    assert set(run.scores["task"]) == set(TASKS) - {"Pairs"}
    monkeypatch.setattr(walk.Walk, "_encode", encode)
    again = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    assert again.failed == []
    assert set(again.scores["task"]) == set(TASKS)
    monkeypatch.setattr(walk.Walk, "_encode", lambda self, step: (_ for _ in ()).throw(RunFolderError("the store is full")))
    with pytest.raises(RunFolderError, match="full"):
        evaluate(tiny_model(), TASKS, **given)


@pytest.mark.usefixtures("in_steps")
def test_a_stopped_plan_goes_on_and_repeats_nothing(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = EncodePass.add, []

    def stops(self: EncodePass, *arguments: Any) -> None:
        added.append(1)
        if len(added) == 5:  # two are timed
            raise KeyboardInterrupt
        add(self, *arguments)

    monkeypatch.setattr(EncodePass, "add", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    monkeypatch.setattr(EncodePass, "add", add)
    before = sum(path.stat().st_size for path in given["store"].rglob("*.npy"))
    assert before > 0
    seen = watch(monkeypatch)
    run = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    whole = evaluate(tiny_model(), TASKS, **{**given, "store": tmp_path / "other"})
    assert 0 < len(seen) - whole.manifest["counts"]["encoded"] < whole.manifest["counts"]["encoded"]
    same(run, whole)
    assert not (tmp_path / "run" / "vectors").exists()


@pytest.mark.slow
def test_processes_score_while_the_next_step_is_encoded(given: dict[str, Any], in_steps: pytest.MonkeyPatch) -> None:
    given = {**given, "scoring": "mteb", "scoring_workers": 1}
    run = evaluate(tiny_model(), ["Pairs", "Sets", "TwitterSemEval2015"], **given)
    assert run.failed == []
    assert run.manifest["estimate"]["memory_bytes"] > 0 or os.name == "nt"
    in_steps.undo()
    same(run, evaluate(tiny_model(), ["Pairs", "Sets", "TwitterSemEval2015"], **{**given, "scoring_workers": 0}))
