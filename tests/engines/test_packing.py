"""Texts as bytes, and errors as words."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerscope.engines.outcome import attempt
from layerscope.engines.packing import PackedTexts, packed
from layerscope.errors import LayerscopeError, MissingExtraError, UnknownNameError


@given(st.lists(st.text(st.characters())))  # surrogates included: files hold some
def test_texts_come_back_as_they_were(texts: list[str]) -> None:
    held = pickle.loads(pickle.dumps(PackedTexts(texts)))
    assert list(held) == texts
    assert held[1:] == texts[1:]
    assert len(held) == len(texts)


def test_what_is_not_text_is_left_alone() -> None:
    pictures = [b"one", b"two"]
    assert packed(pictures) is pictures
    assert list(packed(("a", "b"))) == ["a", "b"]
    with pytest.raises(IndexError):
        PackedTexts(["a"])[1]


def fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("error", [UnknownNameError("site", "x", ["y"]), MissingExtraError("it", "ray"), LayerscopeError("no")])
def test_an_error_of_ours_keeps_its_class_and_words(error: LayerscopeError) -> None:
    outcome = pickle.loads(pickle.dumps(attempt(fail, error)))
    found = outcome.error()
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_another_error_may_be_tried_again() -> None:
    outcome = attempt(fail, OSError("disk"))
    assert (outcome.refused, outcome.reason) == (None, "OSError: disk")
    assert "Traceback" in outcome.trace
