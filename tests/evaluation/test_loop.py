"""The loop over tasks: what goes on at the same time changes no number, and a task that fails stops
no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from layerscope import Evaluation, evaluate
from layerscope.engines import LocalEngine
from layerscope.errors import LayerscopeError, NonFiniteStatesError, RunFolderError
from layerscope.evaluation import job
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
def ahead() -> Iterator[pytest.MonkeyPatch]:
    """Scoring beside the encoding, as on a GPU; until it is undone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "tasks_ahead", lambda model: 1)
        yield patch


def same(a: Evaluation, b: Evaluation) -> None:
    pd.testing.assert_frame_equal(a.scores, b.scores, atol=1e-6, rtol=0)
    pd.testing.assert_frame_equal(a.gains, b.gains, atol=1e-5, rtol=0)


def test_tasks_side_by_side_give_the_scores_of_one_after_the_other(
    given: dict[str, Any], ahead: pytest.MonkeyPatch
) -> None:
    log: list[tuple[str, int]] = []
    encode, score = job._encode, DeviceScoring.score

    def encoded(request: Any, texts: Sequence[str], advance: Any) -> None:
        log.append(("encode", threading.get_ident()))
        encode(request, texts, advance)

    def scored(self: DeviceScoring, context: Any, task: Any, jobs: Any) -> Any:
        log.append(("score", threading.get_ident()))
        return score(self, context, task, jobs)

    ahead.setattr(job, "_encode", encoded)
    ahead.setattr(DeviceScoring, "score", scored)
    run = evaluate(tiny_model(), TASKS, **given)
    # a task is scored once, after it was encoded, in another thread
    steps = [step for step, _ in log]
    assert steps.count("encode") == steps.count("score") == len(TASKS)
    for i, (step, thread) in enumerate(log):
        assert (thread == threading.get_ident()) == (step == "encode")
        assert steps[: i + 1].count("score") <= steps[: i + 1].count("encode")
    ahead.undo()
    whole = evaluate(tiny_model(), TASKS, **{**given, "store": given["store"].with_name("other")})
    assert whole.manifest["counts"]["encoded"] == run.manifest["counts"]["encoded"]
    assert whole.manifest["counts"]["truncated"] == run.manifest["counts"]["truncated"]
    same(run, whole)


@pytest.mark.usefixtures("ahead")
def test_a_task_that_cannot_be_encoded_stops_no_other(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect, read = job.read_tasks, TextEncoder.tokenize
    bad = set[str]()

    def collected(*arguments: Any) -> Any:
        tasks = collect(*arguments)
        texts = {task.spec.name: task.texts for task in tasks}
        others = [texts[name] for name in texts if name != "Ranking"]
        bad.update(set(texts["Ranking"]).difference(*others))
        return tasks

    def reads(self: TextEncoder, texts: Any) -> Any:
        if bad & set(texts):
            raise NonFiniteStatesError("a state is not finite.")
        return read(self, texts)

    with monkeypatch.context() as patch:
        patch.setattr(job, "read_tasks", collected)
        patch.setattr(TextEncoder, "tokenize", reads)
        run = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
        assert run.failed == [{"task": "Ranking", "reason": "a state is not finite."}]
        assert set(run.scores["task"]) == set(TASKS) - {"Ranking"}
        with pytest.raises(NonFiniteStatesError):
            evaluate(tiny_model(), ["Ranking"], **given)
    again = evaluate(tiny_model(), TASKS, out=tmp_path / "run", **given)
    assert again.failed == []
    assert set(again.scores["task"]) == set(TASKS)

    def full(*arguments: Any) -> Any:
        raise RunFolderError("the store is full")

    monkeypatch.setattr(job, "_encode", full)
    with pytest.raises(RunFolderError, match="full"):
        evaluate(tiny_model(), TASKS, **given)


@pytest.mark.usefixtures("ahead")
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


class Elsewhere(LocalEngine):
    """An engine whose workers would be other processes."""

    remote = True


def test_workers_load_the_model_once_for_all_tasks(
    given: dict[str, Any], ahead: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    opened, own = list[int](), ChunkWork.open
    ahead.setattr(ChunkWork, "open", lambda self: opened.append(1) or own(self))
    assert evaluate(tiny_model(), TASKS, engine=Elsewhere(), **given).failed == []
    assert len(opened) == 1
    # what fails there may be the cluster: no other task is tried
    ahead.setattr(ChunkWork, "open", lambda self: opened.append(1) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluate(tiny_model(), TASKS, engine=Elsewhere(), **{**given, "store": tmp_path / "other"})
    assert len(opened) == 2


def test_a_stop_ends_scoring_after_what_is_under_way(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    scored, own = list[int](), DeviceScoring._scored

    def stops(self: DeviceScoring, parts: Any, vectors: Any) -> Any:
        scored.append(len(vectors))
        self.stopped.set()
        return own(self, parts, vectors)

    monkeypatch.setattr(DeviceScoring, "_scored", stops)
    monkeypatch.setattr(DeviceScoring, "room", lambda self: 0)  # a layer at a time
    with pytest.raises(
        LayerscopeError, match=r"1 scores did not come back. What was scored is kept"
    ):  # never fewer, silently
        evaluate(tiny_model(), ["Pairs", "Sets"], **given)
    assert scored == [1]


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


def test_as_many_processes_score_as_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: Any = [SimpleNamespace(texts=["one"]), SimpleNamespace(texts=["two", "three"])]
    counts = []
    for room in (24, 96, 144, 10**6):  # three copies of two texts of two numbers are 48 bytes
        monkeypatch.setattr(job, "_SCORING_BYTES", room)
        counts.append(job.fitting_workers(8, tasks, width=2))
    assert counts == [1, 2, 3, 8]
    assert job.fitting_workers(0, tasks, width=2) == 0


@pytest.mark.slow
def test_processes_score_while_the_next_step_is_encoded(
    given: dict[str, Any], ahead: pytest.MonkeyPatch
) -> None:
    given = {**given, "scoring": "mteb", "scoring_workers": 1}
    run = evaluate(tiny_model(), ["Pairs", "Sets", "TwitterSemEval2015"], **given)
    assert run.failed == []
    ahead.undo()
    same(
        run,
        evaluate(
            tiny_model(), ["Pairs", "Sets", "TwitterSemEval2015"], **{**given, "scoring_workers": 0}
        ),
    )
