"""The processes that score: how they begin and end."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import pytest

from layerscope.errors import LayerscopeError
from layerscope.evaluation import pool


def test_a_process_that_died_is_told_when_more_is_asked_of_it() -> None:
    with pool.ScoringPool(1) as scoring:
        scoring._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        assert scoring._pool.submit(os._exit, 1).exception() is not None
        jobs: list[Any] = [None, None]
        with pytest.raises(
            LayerscopeError, match=r"a scoring process died.*fewer scoring_workers="
        ):
            list(scoring.score(None, jobs))  # type: ignore[arg-type]


def test_what_is_set_for_processes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[str | None]()

    def submit(*arguments: Any) -> Any:
        seen.append(os.environ.get("OMP_NUM_THREADS"))
        done: Future[list[Any]] = Future()
        done.set_result([{}])
        return done

    monkeypatch.setattr(ProcessPoolExecutor, "submit", submit)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    jobs: list[Any] = [None] * 12
    with pool.ScoringPool(1) as scoring:
        results = scoring.score(None, jobs)  # type: ignore[arg-type]
        assert next(iter(results)) == {}
        assert (os.environ["OMP_NUM_THREADS"], os.environ.get("PYTHONSAFEPATH")) == ("7", None)
    assert set(seen) == {"1"}


def test_a_single_job_is_scored_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "score_jobs", lambda context, jobs: iter([{"jobs": len(jobs)}]))
    with pool.ScoringPool(2) as scoring:
        jobs: list[Any] = [None]
        assert list(scoring.score(None, jobs)) == [{"jobs": 1}]  # type: ignore[arg-type]
        assert not scoring._pool._processes  # type: ignore[union-attr]
