"""The loop over tasks: what goes on at the same time changes no number, and a task that fails stops
no other."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerscope import Evaluation, evaluate
from layerscope.engines import LocalEngine
from layerscope.errors import LayerscopeError, NonFiniteStatesError, RunFolderError
from layerscope.evaluation import plan, pool, scoring
from layerscope.evaluation.job import EvaluationJob
from layerscope.evaluation.loop import Loop, Scorers
from layerscope.evaluation.run import texts_file
from layerscope.evaluation.scoring import ScoringContext
from layerscope.store import checked
from layerscope.vectors import VectorSpace
from layerscope.vectors.encode import ChunkWork
from layerscope.vectors.encoder import TextEncoder
from layerscope_gpu.mteb_tasks.scorer import DeviceScoring
from tests.evaluation.support import TASKS, watch, write_tasks
from tests.tiny import tiny_model

pytestmark = [pytest.mark.usefixtures("few_experiments"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    data = write_tasks(tmp_path / "data", pairs=36, texts=36)
    return {
        "data_dir": data,
        "store": tmp_path / "store",
        "layers": [0, -1],
        "scoring_workers": 0,
        "scoring": "device",
    }


@pytest.fixture
def in_steps() -> Iterator[pytest.MonkeyPatch]:
    """A task at a time, and scoring beside the encoding, as on a GPU; until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "TOGETHER", 1)
        patch.setattr(EvaluationJob, "apart", property(lambda self: True))
        yield patch


def same(a: Evaluation, b: Evaluation) -> None:
    # a text goes through the model in another batch, so that last digits may differ
    pd.testing.assert_frame_equal(a.scores, b.scores, atol=1e-6, rtol=0)
    pd.testing.assert_frame_equal(a.gains, b.gains, atol=1e-5, rtol=0)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int]]:
    """What is encoded and scored, in which thread."""
    log: list[tuple[str, str, int]] = []
    own, run = Loop._encode, DeviceScoring.run

    def encoded(self: Loop, names: Any) -> Any:
        log.append(("encode", names[0], threading.get_ident()))
        return own(self, names)

    def scored(self: DeviceScoring, context: ScoringContext, jobs: Any) -> Any:
        if jobs:
            log.append(("score", jobs[0].task.name, threading.get_ident()))
        return run(self, context, jobs)

    monkeypatch.setattr(Loop, "_encode", encoded)
    monkeypatch.setattr(DeviceScoring, "run", scored)
    return log


def test_tasks_side_by_side_give_the_scores_of_one_after_the_other(
    given: dict[str, Any], in_steps: pytest.MonkeyPatch
) -> None:
    log = noted(in_steps)
    run = evaluate(tiny_model(), TASKS, **given)
    assert [name for what, name, _ in log if what == "encode"] == list(TASKS)
    # a task is scored after it was encoded, in another thread
    for i, (what, name, thread) in enumerate(log):
        assert (thread == threading.get_ident()) == (what == "encode")
        if what == "score":
            assert ("encode", name) in [entry[:2] for entry in log[:i]]
    # nothing is scored but what the run asks for
    assert len([entry for entry in log if entry[0] == "score"]) == len(TASKS)
    in_steps.undo()
    whole = evaluate(tiny_model(), TASKS, **{**given, "store": given["store"].with_name("other")})
    assert whole.manifest["counts"]["encoded"] == run.manifest["counts"]["encoded"]
    assert whole.manifest["counts"]["truncated"] == run.manifest["counts"]["truncated"]
    same(run, whole)


def test_small_tasks_are_encoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "TOGETHER", 10)
    texts: Any = {"a": range(9), "b": range(9, 11), "c": range(11, 14)}
    assert plan.EvaluationPlan.groups(None, texts) == [("a", "b"), ("c",)]  # type: ignore[arg-type]


@pytest.mark.usefixtures("in_steps")
def test_a_task_that_cannot_be_encoded_stops_no_other(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Loop._encode

    def fails(self: Loop, names: Any) -> Any:
        if "Pairs" in names:
            raise ValueError("a state is not finite")
        return own(self, names)

    monkeypatch.setattr(Loop, "_encode", fails)
    run = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    assert run.failed == [{"task": "Pairs", "reason": "ValueError: a state is not finite"}]
    assert set(run.scores["task"]) == set(TASKS) - {"Pairs"}
    monkeypatch.setattr(Loop, "_encode", own)
    again = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    assert again.failed == []
    assert set(again.scores["task"]) == set(TASKS)

    def full(self: Loop, names: Any) -> Any:
        raise RunFolderError("the store is full")

    monkeypatch.setattr(Loop, "_encode", full)
    with pytest.raises(RunFolderError, match="full"):
        evaluate(tiny_model(), TASKS, **given)


@pytest.mark.usefixtures("in_steps")
def test_a_stopped_run_goes_on_and_repeats_nothing(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = VectorSpace.add, []

    def stops(self: VectorSpace, *arguments: Any) -> None:
        added.append(1)
        if len(added) == 5:
            raise KeyboardInterrupt
        add(self, *arguments)

    monkeypatch.setattr(VectorSpace, "add", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    monkeypatch.setattr(VectorSpace, "add", add)
    before = sum(path.stat().st_size for path in given["store"].rglob("*.safetensors"))
    assert before > 0
    seen = watch(monkeypatch)
    run = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    whole = evaluate(tiny_model(), TASKS, **{**given, "store": tmp_path / "other"})
    assert 0 < len(seen) - whole.manifest["counts"]["encoded"] < whole.manifest["counts"]["encoded"]
    same(run, whole)


def test_of_tasks_that_are_encoded_together_only_the_bad_one_fails(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, own, read = set[str](), plan.EvaluationPlan.groups, TextEncoder.tokenize

    def groups(self: Any, texts: Any) -> Any:
        others = [some for name, some in texts.items() if name != "Ranking"]
        bad.update(set(texts["Ranking"]).difference(*others))
        return own(self, texts)

    def reads(self: TextEncoder, texts: Any) -> Any:
        if bad & set(texts):
            raise NonFiniteStatesError("a state is not finite.")
        return read(self, texts)

    monkeypatch.setattr(plan.EvaluationPlan, "groups", groups)
    monkeypatch.setattr(TextEncoder, "tokenize", reads)
    run = evaluate(tiny_model(), TASKS, **given)
    assert run.failed == [{"task": "Ranking", "reason": "a state is not finite."}]
    assert set(run.scores["task"]) == set(TASKS) - {"Ranking"}
    with pytest.raises(NonFiniteStatesError):
        evaluate(tiny_model(), ["Ranking"], **given)


class Elsewhere(LocalEngine):
    """An engine whose workers would be other processes."""

    remote = True


def test_workers_load_the_model_once_for_all_tasks(
    given: dict[str, Any], in_steps: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, own = list[int](), ChunkWork.open
    in_steps.setattr(ChunkWork, "open", lambda self: opened.append(1) or own(self))
    assert evaluate(tiny_model(), TASKS, engine=Elsewhere(), **given).failed == []
    assert len(opened) == 1
    # what fails there may be the cluster: no other task is tried
    in_steps.setattr(ChunkWork, "open", lambda self: opened.append(1) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(tiny_model(), TASKS, engine=Elsewhere(), **{**given, "store": tmp_path / "other"})
    assert len(opened) == 2


def test_a_stop_ends_scoring_after_what_is_under_way(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scored, own = list[int](), DeviceScoring._scored

    def stops(self: DeviceScoring, parts: Any, vectors: Any) -> Any:
        scored.append(len(vectors))
        self.stopped.set()
        return own(self, parts, vectors)

    monkeypatch.setattr(DeviceScoring, "_scored", stops)
    monkeypatch.setattr(DeviceScoring, "room", lambda self: 0)  # a layer at a time
    monkeypatch.setattr(Scorers, "apart", True, raising=False)
    with pytest.raises(
        LayerscopeError, match=r"3 scores did not come back. What was scored is kept"
    ):  # never fewer, silently
        evaluate(tiny_model(), ["Pairs", "Sets"], **given)
    assert scored == [1]
    assert "finishing" not in caplog.text
    with Scorers(0, None, apart=False) as scorers:
        scorers._started.append(Future())
    assert "finishing what is being scored" in caplog.text


def one_job(folder: Path) -> Any:
    """What a pool is given: a run with one text, and one job of its task."""
    checked.write_arrays(texts_file(folder, "Pairs"), {"keys": np.zeros((1, 32), np.uint8)})
    return SimpleNamespace(run=folder, width=2), [
        SimpleNamespace(task=SimpleNamespace(name="Pairs"))
    ] * 12


def test_a_process_that_died_is_told_when_more_is_asked_of_it(tmp_path: Path) -> None:
    with pool.ScoringPool(1) as scorers:
        scorers._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        assert scorers._pool.submit(os._exit, 1).exception() is not None
        with pytest.raises(
            LayerscopeError, match=r"a scoring process died.*fewer scoring_workers="
        ):
            scorers.score(*one_job(tmp_path))


class Ends:
    """A job during which its process is told to end."""

    task = SimpleNamespace(name="Pairs")

    def file(self, context: Any) -> Path:
        sys.exit(1)


def test_a_process_that_is_told_to_end_leaves_no_score_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_start", None)  # it would import mteb
    forked = multiprocessing.get_context(
        "fork"
    )  # one that is spawned imports this file, for ten seconds
    monkeypatch.setattr(pool.multiprocessing, "get_context", lambda kind: forked)
    context, _ = one_job(tmp_path)
    with (
        pool.ScoringPool(1) as scorers,
        pytest.raises(LayerscopeError, match="a scoring process died"),
    ):
        list(scorers.score(context, [Ends()]))


def test_what_is_set_for_processes_is_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = list[str | None]()

    def submits(*arguments: Any) -> Any:
        seen.append(os.environ.get("OMP_NUM_THREADS"))
        done: Future[list[Any]] = Future()
        done.set_result([{}])
        return done

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submits)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    with pool.ScoringPool(1) as scorers:
        results = scorers.score(*one_job(tmp_path))
        assert (os.environ["OMP_NUM_THREADS"], os.environ.get("PYTHONSAFEPATH")) == ("7", None)
        assert next(iter(results)) == {}
    assert set(seen) == {"1"}


def test_as_many_processes_score_as_memory_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = list[int]()
    monkeypatch.setattr(
        ProcessPoolExecutor, "submit", lambda self, *arguments: started.append(self._max_workers)
    )
    context, jobs = one_job(tmp_path)
    with pool.ScoringPool(3) as scorers:
        for room in (24, 48, 10**6):  # three copies of a text of two numbers are 24 bytes
            monkeypatch.setattr(pool, "_MOST_BYTES", room)
            scorers.score(context, jobs)
    assert sorted(set(started)) == [1, 2, 3]


def test_layers_are_read_in_turns_where_memory_does_not_hold_them(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, sizes, own = {**given, "layers": None}, list[int](), DeviceScoring._scored
    monkeypatch.setattr(
        DeviceScoring,
        "_scored",
        lambda self, parts, some: sizes.append(len(some)) or own(self, parts, some),
    )
    whole = evaluate(tiny_model(), TASKS, **given)
    assert sizes == [tiny_model().n_blocks + 1] * len(TASKS)
    sizes.clear()
    monkeypatch.setattr(
        DeviceScoring, "room", lambda self: 2 * 60 * 32 * 4
    )  # two layers of sixty texts
    turns = evaluate(tiny_model(), TASKS, **given)
    assert len(sizes) > len(TASKS)
    assert sum(sizes) == len(whole.scores)
    pd.testing.assert_frame_equal(turns.scores, whole.scores, atol=1e-6, rtol=0)


def test_a_single_score_is_made_in_this_process(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ProcessPoolExecutor", None)
    given = {**given, "scoring": "mteb", "scoring_workers": 2, "layers": [-1]}
    assert len(evaluate(tiny_model(), ["Pairs"], **given).scores) == 1


def test_scoring_that_is_left_early_leaves_no_data_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(context: Any, job: Any) -> Any:
        scoring.task_files(job)
        return {}

    monkeypatch.setattr(pool, "run_job", runs)
    spec: Any = type("Spec", (), {"path": None})
    results = pool._score_here(None, [spec, spec])  # type: ignore[arg-type]
    next(results)
    assert scoring.task_files.cache_info().currsize == 1
    results.close()  # type: ignore[attr-defined]
    assert scoring.task_files.cache_info().currsize == 0


@pytest.mark.slow
def test_processes_score_while_the_next_step_is_encoded(
    given: dict[str, Any], in_steps: pytest.MonkeyPatch
) -> None:
    given = {**given, "scoring": "mteb", "scoring_workers": 1}
    run = evaluate(tiny_model(), ["Pairs", "Sets", "TwitterSemEval2015"], **given)
    assert run.failed == []
    in_steps.undo()
    same(
        run,
        evaluate(
            tiny_model(), ["Pairs", "Sets", "TwitterSemEval2015"], **{**given, "scoring_workers": 0}
        ),
    )
