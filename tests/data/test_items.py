"""Items of every kind: what they have in common."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.core.options import DataOptions
from layerscope.data import Corpus
from layerscope.data.items import Items, content_key, get_kind, is_items, open_items
from layerscope.errors import DataError


def test_texts_are_items() -> None:
    items: Items = Corpus.of(["b", "a", "b"], source={"duplicates": 1})
    assert is_items(items)
    assert items.kind == "texts"
    assert items.keys.dtype == np.uint64
    assert len(items.keys) == len(items) == 3


def test_keys_come_from_the_content() -> None:
    corpus = Corpus.of(["b", "a"])
    assert corpus.keys.tolist() == [content_key("b"), content_key("a")]
    assert not is_items(["b", "a"])
    assert not is_items("lee")


def test_duplicates_and_what_was_left_out_are_told() -> None:
    corpus = Corpus(("a", "a"), "texts", "f", {"duplicates": 1}, {"empty": 2})
    assert corpus.warnings()[0] == "texts left out of the corpus: 2 empty."
    assert "1 texts are duplicates" in corpus.warnings()[1]


def test_options_go_with_data_that_are_yet_to_be_read() -> None:
    assert len(open_items(["one", "two"], "texts", DataOptions(limit=1))) == 1
    with pytest.raises(
        DataError, match="limit goes with texts that are yet to be read: pass it to load_corpus"
    ):
        open_items(Corpus.of(["one"]), "texts", DataOptions(limit=1))
    with pytest.raises(DataError, match="split does not go with texts: leave it out"):
        open_items(["one"], "texts", DataOptions(split="test"))


def test_an_unknown_kind_is_given_as_an_object() -> None:
    with pytest.raises(DataError, match=r"'some\.bin' cannot be opened by name"):
        open_items("some.bin", "series")
    assert get_kind("series").reading_settings({"max_length": 3}) == {"max_length": 3}
