"""A worker by itself: errors as words, and one piece of work after the other."""

from __future__ import annotations

import pickle

import pytest

from layerscope.engines.dispatch import Actor, attempt
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import MissingExtraError
from layerscope.version import VERSION
from tests.engines.works import MapWork


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    "error",
    [UnknownNameError("site", "x", ["y"]), MissingExtraError("it", "ray"), LayerscopeError("no")],
)
def test_an_error_of_ours_keeps_its_class_and_words(error: LayerscopeError) -> None:
    outcome = pickle.loads(pickle.dumps(attempt(fail, error)))
    found = outcome.error()
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_another_error_may_be_tried_again() -> None:
    outcome = attempt(fail, OSError("disk"))
    assert (outcome.refused, outcome.reason) == (None, "OSError: disk")
    assert "Traceback" in outcome.trace


def test_calls_that_overtake_each_other_do_not_bring_back_earlier_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that was still opening one piece of work when that ended is given the next: both
    calls are on their way."""
    monkeypatch.setattr(
        "layerscope.engines.dispatch._location", lambda: {"node": "here", "gpus": []}
    )
    worker = Actor()
    assert worker.open(MapWork(str), 7, VERSION, 1).reason is None
    late = worker.open(MapWork(abs), 6, VERSION, 1)
    assert late.reason is not None
    assert worker.run(7, -5, None).result[0] == "-5"
    stale = worker.run(6, -5, None)
    assert "another piece of work (7, not 6)" in str(stale.reason)
    assert stale.refused is None  # it may be tried elsewhere
    worker.release(6)
    assert worker.run(7, 3, None).result[0] == "3"
