"""A worker by itself: errors as words."""

from __future__ import annotations

import pickle

import pytest

from layerscope.engines.dispatch import attempt
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import MissingExtraError


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
