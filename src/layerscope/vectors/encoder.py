"""Texts through a model: their tokens under a template, and the vectors of all wanted readings at
all wanted sites, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from layerscope.capture import Batch, Site, fits_on_device
from layerscope.capture.pooling import Pooler
from layerscope.core.templates import POOLINGS, SLOT, Template
from layerscope.errors import LayerscopeError
from layerscope.forward import BatchRunner
from layerscope.models import LoadedModel
from layerscope.models.inputs import cut_by_characters
from layerscope.models.prefix import SharedPrefix

__all__ = ["EncodeRequest", "TextEncoder", "TokenizedText", "tokenize_texts"]


@dataclass(frozen=True)
class TokenizedText:
    """The token ids of one text, the span that is read, and whether the text was cut."""

    ids: list[int]
    span: tuple[int, int]
    truncated: bool


@dataclass(frozen=True)
class EncodeRequest:
    """The vectors that are wanted of texts: readings (such as `mean/applied`) at sites, under one
    template."""

    template: Template
    sites: tuple[Site, ...]
    readings: tuple[str, ...]
    max_length: int
    batch_size: int | None = None

    @property
    def site_names(self) -> list[str]:
        """The names of the sites."""
        return [site.name for site in self.sites]


@dataclass(frozen=True)
class TextVectors:
    """The vectors of some texts by reading (sites, texts, width), and numbers by name."""

    vectors: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]


class TextEncoder:
    """A model under one request. Between calls it remembers which batches fit into memory."""

    def __init__(self, model: LoadedModel, request: EncodeRequest) -> None:
        self.model = model
        self.request = request
        self.runner = BatchRunner(model, request.batch_size)
        self._prefix: SharedPrefix | None = None

    def tokenize(self, texts: Sequence[str]) -> list[TokenizedText]:
        """Return the token ids of texts. One without a token (an empty string, say) still needs a
        vector: MTEB's data holds some."""
        request = self.request
        tokenized = tokenize_texts(self.model, request.template, texts, request.max_length)
        return [
            text if text.ids else TokenizedText([self.model.pad_id], (0, 1), text.truncated)
            for text in tokenized
        ]

    def run(
        self, tokenized: Sequence[TokenizedText], advance: Callable[[int], None] = lambda n: None
    ) -> TextVectors:
        """Return the vectors and numbers of tokenized texts. On a GPU they are put in order there:
        the host copies them once."""
        sites = self.request.sites
        readings = self.request.readings
        shape = (len(sites), len(tokenized), self.model.width)
        device = self.model.device
        fits = fits_on_device(device, len(readings) * shape[0] * shape[1], shape[2])
        place = device if fits else torch.device("cpu")
        vectors = {
            reading: torch.empty(shape, dtype=torch.float32, device=place) for reading in readings
        }
        numbers = {"truncated": np.array([text.truncated for text in tokenized])}
        prefix = self._prefix = self._shared(tokenized)
        skipped = 0 if prefix is None else len(prefix.ids)
        forward = self.model.run if prefix is None else prefix.run

        def reduce(items: list[int], batch: Batch) -> None:
            spans = [tokenized[i].span for i in items]
            read = [(max(0, start - skipped), stop - skipped) for start, stop in spans]
            pooled, counts = pooler.pool(batch, read, forward)
            # Tokens that were skipped count, too.
            counts["tokens"] = np.array([stop - start for start, stop in spans])
            columns = torch.tensor(items, device=place)
            for reading, rows in pooled.items():
                vectors[reading][:, columns] = rows.to(place)
            for name, values in counts.items():
                if name not in numbers:
                    numbers[name] = np.zeros((*values.shape[:-1], len(tokenized)), values.dtype)
                numbers[name][..., items] = values
            advance(len(items))

        with Pooler(self.model.anatomy, sites, readings) as pooler:
            self.runner.run([text.ids[skipped:] for text in tokenized], reduce)
        arrays = {reading: rows.cpu().numpy() for reading, rows in vectors.items()}
        return TextVectors(arrays, numbers)

    def encode(self, texts: Sequence[str]) -> TextVectors:
        """Return the vectors and numbers of texts."""
        return self.run(self.tokenize(texts))

    def _shared(self, tokenized: Sequence[TokenizedText]) -> SharedPrefix | None:
        """Return the tokens that the template puts before every text, where their states need not
        be pooled."""
        before = self.request.template.pattern.partition(SLOT)[0]
        last = tuple(
            f"{name}/" for name, pooling in POOLINGS.all().items() if pooling.position == "last"
        )
        readings = self.request.readings
        if not before or not readings or not all(name.startswith(last) for name in readings):
            return None
        most = len(self.model.tokenize([before]).ids[0])
        return SharedPrefix.of(self.model, [text.ids for text in tokenized], most, self._prefix)


# Tokens under a template


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
