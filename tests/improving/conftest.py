"""Exports are verified in this process, except where a test is about the fresh one; a tiny model; a
judge that likes heads."""

import numpy as np
import pytest

from layerscope.core.scores import Scores
from layerscope.improving import flow
from layerscope.improving.fit import find_teacher
from tests.exporting.conftest import here
from tests.tiny import tiny_model

__all__ = ["here"]


@pytest.fixture(scope="module")
def llama():
    return tiny_model("llama")


@pytest.fixture(scope="session")
def common_cache(tmp_path_factory: pytest.TempPathFactory):
    return tmp_path_factory.mktemp("common")


@pytest.fixture(autouse=True)
def roughly_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast the models are says nothing here: one round over a few texts."""
    monkeypatch.setattr("layerscope.improving.candidates.TIMED", 4)


@pytest.fixture(autouse=True)
def in_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are read and stored in two parts, not in 25: where a run is stopped it still repeats
    only one."""
    monkeypatch.setattr("layerscope.vectors.encode._PARTS", 2)


@pytest.fixture
def stored(common_cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests have read need not be read again: for tests that are not about reading."""
    monkeypatch.setattr("layerscope.improving.start.cache_dir", lambda: common_cache)


@pytest.fixture
def head_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was judged, a prompt teaches, and the head at layer 2 is far ahead."""
    teacher = find_teacher

    def teach(judgment, candidates, encoder):
        ahead = np.array([float(item.readout.template != "plain") for item in candidates])
        lifted = Scores(judgment.values + ahead, judgment.draws + ahead[:, None])
        return teacher(lifted, candidates, encoder)

    append_scores = flow.append_scores

    def prefer(scores, more):
        total = append_scores(scores, more)
        ahead = np.zeros_like(total.values)
        ahead[len(scores.values) + 2] = 5.0
        return Scores(total.values + ahead, total.draws + ahead[:, None])

    monkeypatch.setattr(flow, "find_teacher", teach)
    monkeypatch.setattr(flow, "append_scores", prefer)
