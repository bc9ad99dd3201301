"""Templates: which tokens are read, and that the text is cut, never the template."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from layerscope.core.templates import TEMPLATES, get_template
from layerscope.errors import LayerscopeError, ModelError, UnknownNameError
from layerscope.models import LoadedModel, load
from layerscope.vectors.encoder import tokenize_texts
from tests.evaluation.support import PATTERNS, fill_by_hand
from tests.tiny import tiny_model

DECODER, ENCODER = tiny_model("llama"), tiny_model("bert")
TEXTS = ["a dog", "naïve café", "日本語", "🙂 and 👩‍👩‍👧", "  spaces  ", "{text}", "x"]


@pytest.mark.parametrize("model", [DECODER, ENCODER], ids=["decoder", "encoder"])
@pytest.mark.parametrize("name", PATTERNS)
def test_spans_by_hand(model: LoadedModel, name: str) -> None:
    for text, encoded in zip(
        TEXTS, tokenize_texts(model, get_template(name), TEXTS, 128), strict=True
    ):
        ids, span = fill_by_hand(model.tokenizer, name, text, model is ENCODER)
        assert encoded.ids == ids
        assert encoded.span == span
        assert not encoded.truncated
        if name == "echo":  # the second copy and nothing else
            assert model.tokenizer.decode(ids[slice(*encoded.span)]) == text


def test_one_word_ends_with_its_question() -> None:
    (encoded,) = tokenize_texts(DECODER, get_template("one-word"), ["a dog"], 128)
    assert encoded.span[1] == len(encoded.ids)
    assert (
        DECODER.tokenizer.decode(encoded.ids[1:]) == 'This sentence: "a dog" means in one word: "'
    )


@pytest.mark.parametrize("name", ["echo", "one-word", "[{text}] = {text} = ({text})"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=80), room=st.integers(2, 60))
@example(text="🙂🙂🙂", room=2)
@example(text="ab🙂cd", room=9)
@example(text="", room=5)
@example(text="{text}", room=20)
def test_the_text_is_cut_never_the_template(name: str, text: str, room: int) -> None:
    template = get_template(name)
    frame = (
        len(template.pattern.replace("{text}", "").encode()) + 1
    )  # and the beginning-of-text token
    limit = frame + template.copies * room
    (encoded,) = tokenize_texts(DECODER, template, [text], limit)
    assert len(encoded.ids) <= limit
    filled = DECODER.tokenizer.decode(encoded.ids[1:])
    size = (len(filled) - len(template.pattern.replace("{text}", ""))) // template.copies
    kept = text[:size]
    assert filled == template.pattern.replace("{text}", kept)
    assert encoded.truncated == (kept != text)
    if template.copies * (len(text.encode()) + 2) <= limit - frame:
        assert not encoded.truncated
    if template.copies > 1 and kept:
        assert DECODER.tokenizer.decode(encoded.ids[slice(*encoded.span)]) == kept
    else:
        assert encoded.span == (0, len(encoded.ids))


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=60), limit=st.integers(3, 40))
def test_plain_texts_are_cut_to_the_length(text: str, limit: int) -> None:
    for model, special in ((DECODER, 1), (ENCODER, 2)):
        (encoded,) = tokenize_texts(model, get_template("plain"), [text], limit)
        assert len(encoded.ids) == min(limit, len(text.encode()) + special)
        assert encoded.span == (0, len(encoded.ids))
        assert encoded.truncated == (len(text.encode()) + special > limit)


@pytest.mark.parametrize("name", ["echo", "one-word"])
def test_no_room_for_a_text(name: str) -> None:
    template = get_template(name)
    frame = len(template.pattern.replace("{text}", "")) + 1
    with pytest.raises(
        LayerscopeError, match=rf"{name}.*takes {frame} of max_length={frame}.*Raise max_length="
    ):
        tokenize_texts(DECODER, template, ["a"], frame)
    (encoded,) = tokenize_texts(DECODER, template, ["abc"], frame + 2 * template.copies)
    assert len(encoded.ids) == frame + template.copies


def test_names_and_patterns() -> None:
    assert get_template("echo") is TEMPLATES.get("echo")
    assert {
        name: template.pattern for name, template in TEMPLATES.all().items() if template.in_all
    } == PATTERNS
    own = get_template("Summary of {text}:")
    assert (own.pattern, own.copies) == ("Summary of {text}:", 1)
    with pytest.raises(UnknownNameError, match=r"one-word.*\{text\}"):
        get_template("oneword")


def test_a_slow_tokenizer_is_refused_with_the_reason() -> None:
    model = tiny_model("llama")
    model._tokenizer = object()
    with pytest.raises(ModelError, match="no fast tokenizer"):
        tokenize_texts(model, get_template("echo"), ["a"], 128)


@pytest.mark.real
def test_spans_of_a_real_tokenizer() -> None:
    """A word's token takes the space before it along, so the span begins with the token that holds
    both."""
    model = load("smollm2-135m")
    texts = [
        "A man is playing a flute.",
        "naïve café 🙂",
        "日本語",
        "two\nlines",
        "A" + " long text" * 200,
    ]
    for text, encoded in zip(
        texts, tokenize_texts(model, get_template("echo"), texts, 128), strict=True
    ):
        assert len(encoded.ids) <= 128
        assert encoded.truncated == (len(text) > 200)
        kept = text
        if encoded.truncated:
            filled = model.tokenizer.decode(encoded.ids)
            kept = filled.rsplit("sentence: ", 1)[1]
            assert text.startswith(kept)
            assert len(encoded.ids) > 120
        before = model.tokenizer(f"Rewrite the sentence: {kept}\nThe rewritten sentence:")[
            "input_ids"
        ]
        assert encoded.ids == before + model.tokenizer(f" {kept}")["input_ids"]
        assert encoded.span == (len(before), len(encoded.ids))
    for encoded in tokenize_texts(model, get_template("one-word"), texts, 128):
        assert len(encoded.ids) <= 128
        assert model.tokenizer.decode(encoded.ids).endswith('" means in one word: "')
        assert encoded.span[1] == len(encoded.ids)
