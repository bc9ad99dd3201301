"""Templates: what is put around a text before it is encoded, and which of its tokens are read.

`plain` reads every token of the text. A template with the text twice (`echo`) reads the second copy, which has seen the first;
any other template (`one-word`) reads the whole sequence, of which pooling by the last token sees everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.models import LoadedModel

SLOT = "{text}"


@dataclass(frozen=True)
class Encoded:
    """One text ready for the model: its token ids, the span that is read, and whether the text was cut."""

    ids: list[int]
    span: tuple[int, int]
    truncated: bool


@dataclass(frozen=True)
class Template:
    """A named pattern with `{text}` in it. `poolings` are those that make sense for it."""

    name: str
    pattern: str
    poolings: tuple[str, ...]
    citation: str = ""

    @property
    def copies(self) -> int:
        """How often the text appears."""
        return self.pattern.count(SLOT)

    def encode(self, model: LoadedModel, texts: Sequence[str], max_length: int) -> list[Encoded]:
        """Token ids of the filled template, at most `max_length`; it is the text that is cut, never the template."""
        if self.pattern == SLOT:
            tokens = model.tokenize(texts, max_length)
            return [Encoded(ids, (0, len(ids)), cut) for ids, cut in zip(tokens.ids, tokens.truncated, strict=True)]
        frame = len(model.tokenize_with_offsets([self.pattern.replace(SLOT, "")])[0][0])
        room = (max_length - frame) // self.copies - 1  # a token more where the text's edges join the template's words
        if room < 1:
            raise LayerscopeError(
                f"template {self.name!r} alone takes {frame} of max_length={max_length} tokens, which leaves no room for a text. "
                "Raise --max-length."
            )
        return self._filled(model, texts, max_length, room)

    def _filled(self, model: LoadedModel, texts: Sequence[str], max_length: int, room: int) -> list[Encoded]:
        shortened, cut = _cut(model, texts, room)
        whole = [self.pattern.replace(SLOT, text) for text in shortened]
        ids, offsets = model.tokenize_with_offsets(whole)
        out = []
        for i, (row, places) in enumerate(zip(ids, offsets, strict=True)):
            if len(row) > max_length:  # rare: the joined text takes more tokens than its parts
                out.append(self._filled(model, [texts[i]], max_length, max(0, room - (len(row) - max_length)))[0])
                continue
            span = (0, len(row))
            if self.copies > 1:
                start = len(whole[i]) - len(self.pattern.rsplit(SLOT, 1)[1]) - len(shortened[i])
                inside = [k for k, (a, b) in enumerate(places) if b > start and a < start + len(shortened[i]) and b > a]
                span = (inside[0], inside[-1] + 1) if inside else span
            out.append(Encoded(row, span, cut[i]))
        return out


def _cut(model: LoadedModel, texts: Sequence[str], room: int) -> tuple[list[str], list[bool]]:
    """Texts cut, at a token's end, to `room` tokens of their own."""
    _, offsets = model.tokenize_with_offsets(texts)
    shortened, cut = [], []
    for text, places in zip(texts, offsets, strict=True):
        own = [b for a, b in places if b > a]
        shortened.append(text if len(own) <= room else text[: own[room - 1]] if room else "")
        cut.append(shortened[-1] != text)  # the last token may be the first of a character's several
    return shortened, cut


TEMPLATES = {
    "plain": Template("plain", SLOT, ("mean", "wmean", "last", "cls", "max")),
    "echo": Template(
        "echo",
        "Rewrite the sentence: {text}\nThe rewritten sentence: {text}",
        ("mean", "wmean", "last", "max"),
        "Springer et al. 2024",
    ),
    "one-word": Template("one-word", 'This sentence: "{text}" means in one word: "', ("last",), "Jiang et al. 2023"),
}


def get_template(name: str) -> Template:
    """A template by name, or the user's own pattern if it has `{text}` in it."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    if SLOT in name:
        return Template(name, name, ("mean", "wmean", "last", "max"))
    raise UnknownNameError("template", name, TEMPLATES, hint="Or a pattern of your own with {text} in it.")
