"""The tokenizer of an exported folder does what the evaluation's template does."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from layerscope.core.templates import get_template
from layerscope.exporting import ExportError
from layerscope.exporting.draft import SHORT, frame_tokenizer, text_longer_than
from layerscope.vectors.encoder import tokenize_texts
from tests.exporting.support import joining_model
from tests.tiny import tiny_model

LONG = text_longer_than(300)
PATTERN = 'This sentence: "{text}" means in one word: "'


def test_a_suffix_that_joins_the_text_is_added_as_characters(tmp_path: Path) -> None:
    model = joining_model()
    framed = frame_tokenizer(model, get_template("one-word"), 120, [*SHORT, LONG])
    assert (framed.joined, framed.appended) == ('"', ' means in one word: "')
    filled = {text: PATTERN.replace("{text}", text) for text in (*SHORT, "ends with a stop.")}
    short = {text: whole for text, whole in filled.items() if len(whole.encode()) < 115}
    expected = [model.tokenizer(whole)["input_ids"] for whole in short.values()]
    assert framed.ids(list(short)) == expected
    stop = model.tokenizer(PATTERN.replace("{text}", "A stop."))["input_ids"]
    pieces = [
        *model.tokenizer("A stop.", add_special_tokens=False)["input_ids"],
        *model.tokenizer('" means', add_special_tokens=False)["input_ids"],
    ]
    assert stop[17:25] != pieces[:8]  # the pieces alone would not do
    # What is cut is the text, never the rest of the template.
    assert not framed.exact_when_cut
    row = framed.ids([LONG])[0]
    assert len(row) == 120
    words = model.tokenizer.decode(row, skip_special_tokens=True)
    assert words.startswith('This sentence: "The harbour')
    assert words.endswith(' means in one word: "')
    framed.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again(list(short), truncation="longest_first")["input_ids"] == expected
    assert again.pad_token_id == model.pad_id


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("name", ["one-word", "query: {text}", "{text} -- in short"])
def test_without_joins_texts_are_cut_as_the_evaluation_cuts_them(family: str, name: str) -> None:
    model = tiny_model(family)
    template = get_template(name)
    framed = frame_tokenizer(model, template, 100, [*SHORT, LONG])
    assert framed.exact_when_cut
    expected = tokenize_texts(model, template, [LONG, "short"], 100)
    assert framed.ids([LONG, "short"]) == [text.ids for text in expected]


def test_plain_texts_and_settings(tmp_path: Path) -> None:
    model = tiny_model("bert")
    model.tokenizer.padding_side = "left"
    framed = frame_tokenizer(model, get_template("plain"), 50, [*SHORT, LONG])
    assert framed.ids([LONG])[0] == model.tokenize([LONG], 50).ids[0]
    framed.tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    encoded = again(["a text", LONG], truncation=True, padding=True)
    assert list(encoded) == ["input_ids", "attention_mask"]
    assert [len(row) for row in encoded["input_ids"]] == [50, 50]
    assert encoded["input_ids"][0][-1] == again.pad_token_id
    assert model.tokenizer.padding_side == "left"  # the user's own stays as it was
    unpadded = tiny_model("gpt2")
    unpadded.tokenizer.pad_token = None
    framed = frame_tokenizer(unpadded, get_template("plain"), 50, SHORT)
    assert framed.tokenizer.pad_token_id == unpadded.pad_id


def test_special_tokens_in_a_template() -> None:
    model = tiny_model("llama")
    with pytest.raises(ExportError, match="special token '<s>' before the text"):
        frame_tokenizer(model, get_template("<s>{text}"), 60, SHORT)
    framed = frame_tokenizer(model, get_template("{text}</s>"), 60, SHORT)
    row = framed.ids(["hello"])[0]
    assert row[-1] == model.tokenizer.eos_token_id
    assert len(row) == 7
