"""Encode each distinct text once, for every layer and every readout of a template, into the
embedding store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from layerscope.capture import Batch, Site, fits_on_device
from layerscope.capture.pooling import Pooler, drop_sink
from layerscope.core.identity import model_key
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import Readout, kinds_of
from layerscope.core.templates import SLOT, Template, get_template
from layerscope.data.items import PackedTexts
from layerscope.engines import Engine
from layerscope.engines.base import Advance, ModelRecipe, Work
from layerscope.errors import LayerscopeError
from layerscope.forward import BatchRunner
from layerscope.models import LoadedModel
from layerscope.models.inputs import cut_by_characters
from layerscope.models.prefix import SharedPrefix
from layerscope.store.embeddings import EmbeddingStore, Space, text_key

__all__ = ["TextEncoder"]

_CHUNK_BYTES = 128 * 2**20
_PARTS = 25  # a run that is stopped repeats at most two of this many parts, or two chunks on a GPU: less than a second each
Vectors = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]
"""Vectors by kind (sites, texts, D), and numbers by name, of some texts."""


@dataclass(frozen=True)
class Encoded:
    """One text ready for the model: its token ids, the span that is read, and whether the text was
    cut."""

    ids: list[int]
    span: tuple[int, int]
    truncated: bool


def encode_template(
    model: LoadedModel, template: Template, texts: Sequence[str], max_length: int
) -> list[Encoded]:
    """Token ids of the filled template, at most `max_length`; it is the text that is cut, never the
    template."""
    if template.pattern == SLOT:
        tokens = model.tokenize(texts, max_length)
        return [
            Encoded(ids, (0, len(ids)), cut)
            for ids, cut in zip(tokens.ids, tokens.truncated, strict=True)
        ]
    frame = len(model.tokenize_with_offsets([template.pattern.replace(SLOT, "")])[0][0])
    room = (
        max_length - frame
    ) // template.copies - 1  # a token more where the text's edges join the template's words
    if room < 1:
        raise LayerscopeError(
            f"template {template.name!r} alone takes {frame} of max_length={max_length} tokens, which leaves no room for a text. "
            "Raise max_length=."
        )
    return _fill(model, template, texts, max_length, room)


def _fill(
    model: LoadedModel, template: Template, texts: Sequence[str], max_length: int, room: int
) -> list[Encoded]:
    shortened, cut = _shorten(model, texts, room)
    whole = [template.pattern.replace(SLOT, text) for text in shortened]
    ids, offsets = model.tokenize_with_offsets(whole)
    out = []
    for i, (row, places) in enumerate(zip(ids, offsets, strict=True)):
        if len(row) > max_length:  # rare: the joined text takes more tokens than its parts
            out += _fill(
                model, template, [texts[i]], max_length, max(0, room - (len(row) - max_length))
            )
            continue
        span = (0, len(row))
        if template.copies > 1:
            start = len(whole[i]) - len(template.pattern.rsplit(SLOT, 1)[1]) - len(shortened[i])
            inside = [
                k
                for k, (a, b) in enumerate(places)
                if b > start and a < start + len(shortened[i]) and b > a
            ]
            span = (inside[0], inside[-1] + 1) if inside else span
        out.append(Encoded(row, span, cut[i]))
    return out


def _shorten(model: LoadedModel, texts: Sequence[str], room: int) -> tuple[list[str], list[bool]]:
    """Texts cut, at a token's end, to `room` tokens of their own."""
    heads, long = cut_by_characters(texts, room)
    _, offsets = model.tokenize_with_offsets(heads)
    for i in (i for i in long if sum(b > a for a, b in offsets[i]) <= room):
        offsets[i] = model.tokenize_with_offsets([texts[i]])[1][0]
    shortened, cut = [], []
    for text, places in zip(texts, offsets, strict=True):
        own = [b for a, b in places if b > a]
        shortened.append(text if len(own) <= room else text[: own[room - 1]] if room else "")
        cut.append(
            shortened[-1] != text
        )  # the last token may be the first of a character's several
    return shortened, cut


def space_description(
    identity: Mapping[str, Any], template: Template, max_length: int
) -> dict[str, Any]:
    """What tells the vectors of a model, given by its identity, from all others, apart from site
    and kind."""
    return {
        "model": {
            **model_key(identity),
            "revision": identity.get("revision"),
        },  # code of a model's own comes with the commit
        "template": template.pattern,
        "max_length": max_length,
    }


def open_space(
    store: EmbeddingStore,
    model: LoadedModel,
    template: Template,
    max_length: int,
    dtype: str = "float32",
) -> Space:
    """The part of a store that holds this model's vectors under this template, length and
    precision."""
    return store.space(space_description(model.identity, template, max_length), dtype=dtype)


class TextEncoder:
    """Vectors of texts under one template: all kinds at all sites. Knows nothing of stores."""

    def __init__(
        self,
        model: LoadedModel,
        template: Template,
        sites: Sequence[Site],
        kinds: Sequence[str],
        max_length: int,
        batch_size: int | None = None,
    ) -> None:
        self.model, self.template = model, template
        self.sites, self.kinds = list(sites), list(kinds)
        self.max_length, self.batch_size = max_length, batch_size
        self.runner = BatchRunner(model, batch_size)
        self._prefix: SharedPrefix | None = None

    def read(self, texts: Sequence[str]) -> list[Encoded]:
        """Token ids of texts. One without a token (an empty string, say) still needs a vector:
        MTEB's data holds some."""
        encoded = encode_template(self.model, self.template, texts, self.max_length)
        return [e if e.ids else Encoded([self.model.pad_id], (0, 1), e.truncated) for e in encoded]

    def run(self, encoded: Sequence[Encoded], advance: Callable[[int], None]) -> Vectors:
        """Vectors and numbers of texts that were read. On a GPU they are put in order there: the
        host copies them once."""
        shape, device = (len(self.sites), len(encoded), self.model.width), self.model.device
        where = (
            device
            if fits_on_device(device, len(self.kinds) * shape[0] * shape[1], shape[2])
            else "cpu"
        )
        vectors = {
            kind: torch.empty(shape, dtype=torch.float32, device=where) for kind in self.kinds
        }
        numbers: dict[str, np.ndarray] = {"truncated": np.array([e.truncated for e in encoded])}
        prefix = self._prefix = self._shared(encoded)
        skipped, forward = (0, self.model.run) if prefix is None else (len(prefix.ids), prefix.run)

        def keep(items: list[int], batch: Batch) -> None:
            spans = [encoded[i].span for i in items]
            pooled, counted = pooler.run(
                batch, [(max(0, a - skipped), b - skipped) for a, b in spans], forward
            )
            counted["tokens"] = np.array([b - a for a, b in spans])  # those that were skipped, too
            places = torch.tensor(items, device=where)
            for kind, some in pooled.items():
                vectors[kind][:, places] = some.to(where)
            for name, array in counted.items():
                column = numbers.setdefault(
                    name, np.zeros((*array.shape[:-1], len(encoded)), dtype=array.dtype)
                )
                column[..., items] = array
            advance(len(items))

        with Pooler(self.model.anatomy, self.sites, self.kinds) as pooler:
            self.runner.run([e.ids[skipped:] for e in encoded], keep)
        return {kind: some.cpu().numpy() for kind, some in vectors.items()}, numbers

    def _shared(self, encoded: Sequence[Encoded]) -> SharedPrefix | None:
        """The tokens that the template puts before every text, where their states need not be
        pooled."""
        before = self.template.pattern.partition(SLOT)[0]
        ends = [
            f"{name}/" for name, pooling in POOLINGS.all().items() if pooling.position == "last"
        ]
        if (
            not before
            or not self.kinds
            or not all(kind.startswith(tuple(ends)) for kind in self.kinds)
        ):
            return None
        most = len(self.model.tokenize([before]).ids[0])
        return SharedPrefix.of(self.model, [e.ids for e in encoded], most, self._prefix)

    def computed(self, encoded: Sequence[Encoded]) -> int:
        """How many tokens the model is run on for these texts: those that they share count once."""
        prefix = self._shared(encoded)
        total = sum(len(e.ids) for e in encoded)
        return total if prefix is None else total - len(prefix.ids) * (len(encoded) - 1)


class EncodePass:
    """One pass over texts under one template, into a space of the store."""

    def __init__(self, encoder: TextEncoder, space: Space) -> None:
        self.encoder, self.space, model = encoder, space, encoder.model
        self.template, self.sites, self.kinds = encoder.template, encoder.sites, encoder.kinds
        per_text = len(self.sites) * max(1, len(self.kinds)) * model.width * 4
        self.chunk = int(
            max(8, min(4096 if model.device.type == "cuda" else 512, _CHUNK_BYTES // per_text))
        )

    def missing(self, texts: Sequence[str]) -> list[str]:
        """The distinct texts that are not in the store yet, longest first so that batches hold
        little padding."""
        distinct = list(dict.fromkeys(texts))
        stored = self.space.has(
            [text_key(t) for t in distinct], self.kinds, [s.name for s in self.sites]
        )
        return sorted(
            (t for t, is_stored in zip(distinct, stored, strict=True) if not is_stored),
            key=lambda t: (-len(t), t),
        )

    def run(self, texts: Sequence[str], advance: Callable[[int], None] = lambda n: None) -> None:
        """Encode texts and add them to the store, a chunk while the next is encoded: what is added
        survives what comes next."""
        self.check_room(len(texts))
        with ThreadPoolExecutor(1) as writer:
            added = writer.submit(lambda: None)
            for part in (list(texts[span]) for span in self.spans(len(texts))):
                vectors = self.encoder.run(self.encoder.read(part), advance)
                added.result()  # one at a time, so that memory holds two chunks at most; and its error, if any
                added = writer.submit(self.add, part, vectors)
        added.result()

    def bytes_of(self, count: int) -> int:
        """Return the bytes that the vectors of so many texts take in the store."""
        numbers = count * len(self.kinds) * len(self.sites) * self.encoder.model.width
        return numbers * np.dtype(self.space.dtype).itemsize

    def check_room(self, count: int) -> None:
        """Raise where the vectors of so many texts do not fit into the store."""
        width = self.encoder.model.width
        self.space.check_room(count, len(self.kinds), len(self.sites), width)

    def add(self, texts: Sequence[str], encoded: Vectors) -> None:
        """Add the vectors and numbers of texts to the store."""
        vectors, numbers = encoded
        self.space.add([text_key(t) for t in texts], vectors, [s.name for s in self.sites], numbers)

    def spans(self, count: int) -> list[slice]:
        """Where the chunks begin and end in which so many texts are encoded and stored."""
        size = (
            self.chunk
            if self.encoder.model.device.type == "cuda"
            else max(8, min(self.chunk, count // _PARTS))
        )
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def open_passes(
    model: LoadedModel,
    readouts: Sequence[Readout],
    sites: Sequence[Site],
    store: EmbeddingStore,
    max_length: int,
    texts: Sequence[str],
    batch_size: int | None = None,
    dtype: str = "float32",
) -> list[tuple[EncodePass, list[str]]]:
    """Return a pass for each template of the readouts, with the texts that the store lacks."""
    passes = []
    for name in dict.fromkeys(readout.template for readout in readouts):
        template = get_template(name)
        kinds = kinds_of(readout for readout in readouts if readout.template == name)
        space = open_space(store, model, template, max_length, dtype)
        encoder = TextEncoder(model, template, sites, kinds, max_length, batch_size)
        encode = EncodePass(encoder, space)
        passes.append((encode, encode.missing(texts)))
    return passes


def readout_vectors(space: Space, keys: Sequence[bytes], readout: Readout, site: str) -> np.ndarray:
    """The vectors (n, D) of texts at one site under a readout; the caller, who knows the corpus,
    centers them."""
    first = space.read(keys, readout.kinds[0], site)
    if len(readout.kinds) == 1:
        return first
    sinks = space.read(keys, readout.kinds[1], site)
    where = space.read_numbers(keys, "sink", site)
    return drop_sink(
        readout.pooling, first, sinks, space.read_numbers(keys, "tokens"), where
    ).astype(np.float32)


Chunk = tuple[int, slice]
"""The number of a pass, and which of its texts."""


class ChunkWork(Work[Chunk, Vectors]):
    """A chunk of texts in, their vectors out."""

    under_way = 2

    def __init__(
        self, recipe: ModelRecipe, passes: Sequence[tuple[EncodePass, Sequence[str]]]
    ) -> None:
        self.recipe = recipe
        first = passes[0][0].encoder
        self.settings = (first.max_length, first.batch_size)
        self.sites = first.sites
        self.passes = [
            (encode.template, encode.kinds, PackedTexts(texts)) for encode, texts in passes
        ]
        self.memory, self._encoders = recipe.memory, list[TextEncoder]()

    def open(self) -> int:
        """Load the model; returns the tokens per batch, so that batches are the same on every
        worker."""
        model = self.recipe.open()
        self.device = model.device.type
        alike: dict[tuple[str, ...], TextEncoder] = {}  # of tasks that follow one another
        for template, kinds, _ in self.passes:
            encoder = TextEncoder(model, template, self.sites, kinds, *self.settings)
            self._encoders.append(alike.setdefault((template.pattern, *kinds), encoder))
        return self._encoders[0].runner.tokens

    def prepare(self, item: Chunk) -> list[Encoded]:
        """Token ids of the chunk's texts."""
        which, span = item
        return self._encoders[which].read(self.passes[which][2][span])

    def run(self, item: Chunk, prepared: list[Encoded], advance: Advance, common: Any) -> Vectors:
        """Their vectors."""
        encoder = self._encoders[item[0]]
        encoder.runner.tokens = min(encoder.runner.tokens, common)
        return encoder.run(prepared, advance)

    def name(self, item: Chunk) -> str:
        """Which texts, under which template."""
        which, span = item
        return f"texts {span.start} to {span.stop - 1} (longest first) under template {self.passes[which][0].name!r}"


def stored_by_workers(
    engine: Engine, recipe: ModelRecipe, passes: Sequence[tuple[EncodePass, Sequence[str]]]
) -> Generator[tuple[int, int], None, None]:
    """Workers encode, this process adds to the store: what is added is there whatever happens to
    them.

    Says of each chunk of which pass it is and how many texts it has. Those of the first pass are
    begun first.
    """
    chunks = [
        (i, span) for i, (encode, texts) in enumerate(passes) for span in encode.spans(len(texts))
    ]
    for i, vectors in engine.run(ChunkWork(recipe, passes), chunks):
        which, span = chunks[i]
        encode, texts = passes[which]
        encode.add(texts[span], vectors)
        yield which, span.stop - span.start


def encode_by_workers(
    engine: Engine,
    recipe: ModelRecipe,
    passes: Sequence[tuple[EncodePass, Sequence[str]]],
    advance: Advance,
) -> None:
    """All passes, one after the other."""
    for _, count in stored_by_workers(engine, recipe, passes):
        advance(count)
