"""The token ids of texts under a template, and the span of them that is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerscope.core.templates import SLOT, Template
from layerscope.errors import LayerscopeError
from layerscope.models import LoadedModel
from layerscope.models.inputs import cut_by_characters

__all__ = ["TokenizedText", "tokenize_texts"]


@dataclass(frozen=True)
class TokenizedText:
    """The token ids of one text, the span that is read, and whether the text was cut."""

    ids: list[int]
    span: tuple[int, int]
    truncated: bool


def tokenize_texts(
    model: LoadedModel, template: Template, texts: Sequence[str], max_length: int
) -> list[TokenizedText]:
    """Return the token ids of the filled template, at most `max_length`. It is the text that is
    cut, never the template."""
    if template.pattern == SLOT:
        tokens = model.tokenize(texts, max_length)
        return [
            TokenizedText(ids, (0, len(ids)), is_cut)
            for ids, is_cut in zip(tokens.ids, tokens.truncated, strict=True)
        ]
    frame = len(model.tokenize_with_offsets([template.pattern.replace(SLOT, "")])[0][0])
    # A token more where the text's edges join the template's words.
    room = (max_length - frame) // template.copies - 1
    if room < 1:
        raise LayerscopeError(
            f"template {template.name!r} alone takes {frame} of max_length={max_length} tokens, "
            "which leaves no room for a text. Raise max_length=."
        )
    return _fill(model, template, texts, max_length, room)


def _fill(
    model: LoadedModel, template: Template, texts: Sequence[str], max_length: int, room: int
) -> list[TokenizedText]:
    """Return the filled template of texts that are cut to `room` tokens each."""
    shortened, is_cut = _shorten(model, texts, room)
    filled = [template.pattern.replace(SLOT, text) for text in shortened]
    ids, offsets = model.tokenize_with_offsets(filled)
    tokenized = []
    for i, (row, places) in enumerate(zip(ids, offsets, strict=True)):
        if len(row) > max_length:  # rare: the joined text takes more tokens than its parts
            less = max(0, room - (len(row) - max_length))
            tokenized += _fill(model, template, [texts[i]], max_length, less)
            continue
        span = (0, len(row))
        if template.copies > 1:
            tail = template.pattern.rsplit(SLOT, 1)[1]
            start = len(filled[i]) - len(tail) - len(shortened[i])
            stop = start + len(shortened[i])
            inside = [k for k, (a, b) in enumerate(places) if b > start and a < stop and b > a]
            if inside:
                span = (inside[0], inside[-1] + 1)
        tokenized.append(TokenizedText(row, span, is_cut[i]))
    return tokenized


def _shorten(model: LoadedModel, texts: Sequence[str], room: int) -> tuple[list[str], list[bool]]:
    """Return texts cut, at the end of a token, to `room` tokens of their own."""
    beginnings, long = cut_by_characters(texts, room)
    _, offsets = model.tokenize_with_offsets(beginnings)
    for i in long:
        if sum(b > a for a, b in offsets[i]) <= room:
            offsets[i] = model.tokenize_with_offsets([texts[i]])[1][0]
    shortened = []
    for text, places in zip(texts, offsets, strict=True):
        ends = [b for a, b in places if b > a]
        if len(ends) > room:
            text = text[: ends[room - 1]] if room else ""
        shortened.append(text)
    # The last token may be the first of several of one character: then nothing was cut.
    return shortened, [text != whole for text, whole in zip(shortened, texts, strict=True)]
