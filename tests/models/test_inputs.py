"""Tokens of texts: cut as the model takes them, and errors of tokenizers in one line."""

from __future__ import annotations

from typing import Any

import pytest

from layerscope.data import Corpus
from layerscope.data.views import ViewSettings
from layerscope.errors import InvalidValueError, ModelError
from layerscope.models import LoadedModel, inputs
from layerscope.models.inputs import ReadSettings, tokenizer_explained
from tests.tiny import tiny_model

TEXTS = [f"Text {i} has {'some more ' * (i % 7)}words." for i in range(50)]


def same_tokens(model: LoadedModel, texts: list[str], limit: int) -> None:
    read, few = model.tokenize(texts, limit), [model.tokenize([text], limit) for text in texts]
    assert read.ids == [one.ids[0] for one in few]
    assert read.truncated == [one.truncated[0] for one in few]


@pytest.mark.parametrize("family", ["gpt_neox", "bert"])
@pytest.mark.parametrize("limit", [2, 12, 64])
def test_texts_together_have_the_tokens_of_each_alone(family: str, limit: int) -> None:
    model = tiny_model(family)
    odd = ["", " ", "naïve — 漢字 🙂", "</s> [MASK] <pad>", "x" * 500]
    same_tokens(model, odd + TEXTS, limit)


@pytest.mark.parametrize(
    "texts", [1, 40]
)  # few are tokenized by the model, many by the tokenizer's core
def test_a_text_is_cut_by_characters_before_it_is_tokenized(
    texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("bert")
    words = [" ".join(f"word{(i * k) % 17}" for k in range(400)) for i in range(texts)]
    whole = model.tokenize(words, 12)
    monkeypatch.setattr(inputs, "_MIN_CHARACTERS", 40)
    monkeypatch.setattr(inputs, "_CHARACTERS_PER_TOKEN", 2)
    assert max(map(len, inputs.cut_by_characters(words, 12)[0])) == 64 < len(words[0])
    block = model.tokenize(words, 12)
    assert block.ids == whole.ids
    assert all(block.truncated)
    # a head with too few tokens is no head: the text is tokenized whole
    monkeypatch.setattr(inputs, "_MIN_CHARACTERS", 5)
    monkeypatch.setattr(inputs, "_CHARACTERS_PER_TOKEN", 0)
    assert model.tokenize(words, 12).ids == whole.ids


@pytest.mark.parametrize("family", ["gpt_neox", "bert"])
def test_workers_give_the_tokens_of_views_that_the_model_gives(
    family: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model(family)
    corpus = Corpus.of([*TEXTS, "…", "x" * 500])
    numbers = list(range(len(corpus)))
    views = ViewSettings(3, seed=4)
    monkeypatch.setattr("layerscope.data.views.cores_here", lambda: 4)
    monkeypatch.setattr(inputs, "_MIN_VIEWS_IN_POOL", 1)
    with model.open_items(corpus, ReadSettings(12)) as reader:
        rows = reader.read(numbers)
        expected = reader.read_views(numbers, rows, views)
        monkeypatch.setattr(model, "tokenize", tokenize_at_most(4, model.tokenize))
        reader.start_views(views, len(corpus))
        for _ in range(2):
            made = reader.read_views(numbers, rows, views)
            assert [list(ids) for ids in made] == [list(ids) for ids in expected]
    assert "worker" not in caplog.text


def tokenize_at_most(most: int, tokenize: Any) -> Any:
    """Return `tokenize`, which fails where this process tokenizes more texts than a check needs."""

    def checked(texts: list[str], longest: int | None) -> Any:
        assert len(texts) <= most
        return tokenize(texts, longest)

    return checked


def test_a_limit_below_the_special_tokens_is_refused() -> None:
    model = tiny_model("bert")
    with pytest.raises(
        InvalidValueError,
        match=r"max_length 1 is too short for tiny-bert: .* adds 2 special .* at least 3",
    ):
        model.tokenize(["a text"], 1)
    assert [len(ids) for ids in model.tokenize(["a longer text"] * 2, 3).ids] == [3, 3]


def test_a_panic_of_the_tokenizers_core_is_told_and_ctrl_c_stays() -> None:
    panic = type(
        "PanicException", (BaseException,), {"__module__": "pyo3_runtime"}
    )  # as Rust's panics reach Python
    told = r"tokenizer of mine cannot tokenize a text \(no entry found for key\)"
    with pytest.raises(ModelError, match=told), tokenizer_explained("mine"):
        raise panic("no entry found for key")
    with pytest.raises(KeyboardInterrupt), tokenizer_explained("mine"):
        raise KeyboardInterrupt
