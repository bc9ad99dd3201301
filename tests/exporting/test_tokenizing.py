"""The tokenizer of an exported folder does what the evaluation's template does."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from layerscope.core.templates import get_template
from layerscope.exporting import ExportError
from layerscope.exporting.draft import SHORT, text_longer_than
from layerscope.exporting.tokenizing import frame_tokenizer
from layerscope.vectors.tokenize import tokenize_texts
from tests.exporting.support import joining_model
from tests.tiny import tiny_model

LONG = text_longer_than(300)
PATTERN = 'This sentence: "{text}" means in one word: "'


def test_a_suffix_that_joins_the_text_is_added_as_characters() -> None:
    model, template = joining_model(), get_template("one-word")
    framed = frame_tokenizer(model, template, 120, [*SHORT, LONG])
    assert (framed.joined, framed.appended) == ('"', ' means in one word: "')
    fits = [
        text
        for text in (*SHORT, "ends with a stop.")
        if len(PATTERN.replace("{text}", text).encode()) < 115
    ]
    for text, row in zip(fits, framed.ids(fits), strict=True):
        assert row == model.tokenizer(PATTERN.replace("{text}", text))["input_ids"]
    whole = model.tokenizer(PATTERN.replace("{text}", "A stop."))["input_ids"]
    parts = [
        model.tokenizer(part, add_special_tokens=False)["input_ids"]
        for part in ("A stop.", '" means')
    ]
    assert whole[17:25] != [*parts[0], *parts[1]][:8]  # the pieces alone would not do
    assert not framed.exact_when_cut


def test_what_is_cut_is_the_text_never_the_rest_of_the_template() -> None:
    model = joining_model()
    framed = frame_tokenizer(model, get_template("one-word"), 120, [*SHORT, LONG])
    row = framed.ids([LONG])[0]
    assert len(row) == 120
    told = model.tokenizer.decode(row, skip_special_tokens=True)
    assert told.startswith('This sentence: "The harbour')
    assert told.endswith(' means in one word: "')


@pytest.mark.parametrize("family", ["llama", "bert"])
def test_without_joins_texts_are_cut_as_the_evaluation_cuts_them(family: str) -> None:
    model = tiny_model(family)
    for name in ("one-word", "query: {text}", "{text} -- in short"):
        template = get_template(name)
        framed = frame_tokenizer(model, template, 100, [*SHORT, LONG])
        assert framed.exact_when_cut
        assert framed.ids([LONG, "short"]) == [
            e.ids for e in tokenize_texts(model, template, [LONG, "short"], 100)
        ]


def test_plain_texts_and_settings(tmp_path: Path) -> None:
    model = tiny_model("bert")
    model.tokenizer.padding_side = "left"
    framed = frame_tokenizer(model, get_template("plain"), 50, [*SHORT, LONG])
    assert framed.ids([LONG])[0] == model.tokenize([LONG], 50).ids[0]
    framed.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    found = again(["a text", LONG], truncation=True, padding=True)
    assert list(found) == ["input_ids", "attention_mask"]
    assert [len(row) for row in found["input_ids"]] == [50, 50]
    assert found["input_ids"][0][-1] == again.pad_token_id
    assert model.tokenizer.padding_side == "left"  # the user's own is left alone


def test_a_template_survives_saving(tmp_path: Path) -> None:
    model = joining_model()
    framed = frame_tokenizer(model, get_template("one-word"), 120, SHORT)
    framed.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    texts = [text for text in SHORT if len(text) < 60]
    assert again(texts, truncation="longest_first")["input_ids"] == framed.ids(texts)
    assert again.pad_token_id == model.pad_id


def test_a_tokenizer_without_padding_gets_the_models() -> None:
    model = tiny_model("gpt2")
    model.tokenizer.pad_token = None
    framed = frame_tokenizer(model, get_template("plain"), 50, SHORT)
    assert framed.tokenizer.pad_token_id == model.pad_id


def test_special_tokens_before_the_text_are_refused() -> None:
    with pytest.raises(ExportError, match="special token '<s>' before the text"):
        frame_tokenizer(tiny_model("llama"), get_template("<s>{text}"), 60, SHORT)


def test_special_tokens_after_the_text_are_tokens() -> None:
    model = tiny_model("llama")
    framed = frame_tokenizer(model, get_template("{text}</s>"), 60, SHORT)
    row = framed.ids(["hello"])[0]
    assert row[-1] == model.tokenizer.eos_token_id
    assert len(row) == 7
