"""The processes that score: how they end."""

from __future__ import annotations

import os
from typing import Any

import pytest

from layerscope.errors import LayerscopeError
from layerscope.evaluation import scoring


def test_a_process_that_died_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_start", die)
    jobs: list[Any] = [None, None]
    with (
        pytest.raises(LayerscopeError, match=r"a scoring process died.*fewer scoring_workers="),
        scoring.scoring_pool(1) as pool,
    ):
        list(scoring.score_by_mteb(pool, None, jobs))  # type: ignore[arg-type]


def die() -> None:
    os._exit(1)


def test_a_single_job_is_scored_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "score_jobs", lambda context, jobs: iter([len(jobs)]))
    jobs: list[Any] = [None]
    with scoring.scoring_pool(2) as pool:
        assert list(scoring.score_by_mteb(pool, None, jobs)) == [1]  # type: ignore[arg-type]
        assert not pool._processes  # type: ignore[union-attr]
