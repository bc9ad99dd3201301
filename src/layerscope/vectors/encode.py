"""The one function that fills the vector store, and the one that reads a readout from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.capture.pooling import drop_sink
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout, kinds_of
from layerscope.core.templates import Template, get_template
from layerscope.engines import (
    Advance,
    Engine,
    LocalEngine,
    ModelRecipe,
    Work,
    ignore_progress,
)
from layerscope.models import LoadedModel
from layerscope.vectors.encoder import EncodeRequest, TextEncoder
from layerscope.vectors.store import Shard, VectorSpace, VectorStore, text_key

__all__ = [
    "MissingTexts",
    "encode",
    "find_missing",
    "make_requests",
    "open_space",
    "read_readout",
    "space_description",
]

_CHUNK_BYTES = 128 * 2**20
# A run that is stopped repeats at most two of this many parts, or two chunks on a GPU: less than a
# second each.
_PARTS = 25


def space_description(
    identity: Mapping[str, Any], template: Template, max_length: int
) -> dict[str, Any]:
    """Return what tells the vectors of a model, given by its identity, from all others, apart from
    site and reading."""
    # Code of a model's own comes with the commit.
    model = {**model_key(identity), "revision": identity.get("revision")}
    return {"model": model, "template": template.pattern, "max_length": max_length}


def open_space(
    store: VectorStore,
    model: LoadedModel,
    template: Template,
    max_length: int,
) -> VectorSpace:
    """Return the space of a store that holds this model's vectors under this template and
    length."""
    return store.space(space_description(model.identity, template, max_length))


def make_requests(
    readouts: Sequence[Readout],
    sites: Sequence[Site],
    max_length: int,
    batch_size: int | None = None,
) -> list[EncodeRequest]:
    """Return a request for each template of the readouts."""
    requests = []
    for name in dict.fromkeys(readout.template for readout in readouts):
        readings = kinds_of(readout for readout in readouts if readout.template == name)
        template = get_template(name)
        requests.append(
            EncodeRequest(template, tuple(sites), tuple(readings), max_length, batch_size)
        )
    return requests


@dataclass(frozen=True)
class MissingTexts:
    """The distinct texts whose vectors a space lacks, in the order in which they are encoded."""

    request: EncodeRequest
    store: VectorStore
    space: VectorSpace
    texts: list[str]
    width: int

    @property
    def bytes(self) -> int:
        """Return the bytes that the vectors will take in the store."""
        request = self.request
        return 4 * len(self.texts) * len(request.readings) * len(request.sites) * self.width


def find_missing(
    model: LoadedModel,
    store: VectorStore,
    requests: Sequence[EncodeRequest],
    texts: Sequence[str],
) -> list[MissingTexts]:
    """Return, for each request, the texts that the store lacks: longest first, so that batches hold
    little padding."""
    distinct = sorted(set(texts), key=lambda text: (-len(text), text))
    keys = [text_key(text) for text in distinct]
    texts_by_request = []
    for request in requests:
        space = open_space(store, model, request.template, request.max_length)
        lacking = space.missing(keys, request.readings, request.site_names)
        missing = [text for text, is_missing in zip(distinct, lacking, strict=True) if is_missing]
        texts_by_request.append(MissingTexts(request, store, space, missing, model.width))
    return texts_by_request


def encode(
    model: LoadedModel,
    missing: Sequence[MissingTexts],
    *,
    engine: Engine | None = None,
    recipe: ModelRecipe | None = None,
    advance: Advance = ignore_progress,
) -> None:
    """Encode the texts that spaces lack, and add them.

    With a `recipe` the engine's workers run the model. A shard is added while the next is encoded:
    what was added survives whatever comes next.
    """
    if not any(lacking.texts for lacking in missing):
        return
    missing[0].store.check_room(sum(lacking.bytes for lacking in missing))
    chunks = []
    for number, lacking in enumerate(missing):
        size = _chunk_size(lacking.request, len(lacking.texts), model)
        starts = range(0, len(lacking.texts), size)
        chunks += [(number, slice(start, start + size)) for start in starts]
    if recipe is None or engine is None:
        engine, recipe = LocalEngine(), None
    work = ChunkWork(model if recipe is None else None, recipe, missing)
    with ThreadPoolExecutor(1) as writer:
        added = writer.submit(lambda: None)
        for i, shard in engine.run(work, chunks, advance):
            added.result()  # so that memory holds two chunks at most; and its error, if any
            number, _ = chunks[i]
            added = writer.submit(missing[number].space.add, shard)
        added.result()


def _chunk_size(request: EncodeRequest, count: int, model: LoadedModel) -> int:
    """Return how many texts are encoded and stored at a time."""
    on_gpu = model.device.type == "cuda"
    per_text = len(request.sites) * max(1, len(request.readings)) * model.width * 4
    size = max(8, min(4096 if on_gpu else 512, _CHUNK_BYTES // per_text))
    return size if on_gpu else max(8, min(size, count // _PARTS))


class ChunkWork(Work[tuple[int, slice], Shard]):
    """Encodes some of the texts of a request: its number and a slice in, a shard out.

    Without a model, each worker opens the recipe.
    """

    def __init__(
        self,
        model: LoadedModel | None,
        recipe: ModelRecipe | None,
        missing: Sequence[MissingTexts],
    ) -> None:
        self.model = model
        self.recipe = recipe
        self.memory = 0 if recipe is None else recipe.memory
        self.requests = [lacking.request for lacking in missing]
        self.texts = [lacking.texts for lacking in missing]
        self._encoders: dict[EncodeRequest, TextEncoder] = {}

    def open(self) -> None:
        """Load the model."""
        model = self.model
        if model is None:
            assert self.recipe is not None
            model = self.recipe.open()
        self.device = model.device.type
        self._encoders = {request: TextEncoder(model, request) for request in self.requests}

    def run(self, item: tuple[int, slice], advance: Advance) -> Shard:
        """Return the vectors of the chunk's texts."""
        number, span = item
        request = self.requests[number]
        encoder = self._encoders[request]
        texts = self.texts[number][span]
        encoded = encoder.run(encoder.tokenize(texts), advance)
        keys = [text_key(text) for text in texts]
        return Shard(keys, request.site_names, encoded.vectors, encoded.numbers)

    def name(self, item: tuple[int, slice]) -> str:
        """Return in words which texts the chunk holds."""
        number, span = item
        template = self.requests[number].template.name
        last = min(span.stop, len(self.texts[number])) - 1
        return f"texts {span.start} to {last} (longest first) under template {template!r}"


def read_readout(
    space: VectorSpace, keys: Sequence[bytes], readout: Readout, site: str
) -> np.ndarray:
    """Return the vectors (texts, width) of texts at one site under a readout. The caller, who knows
    the corpus, centers them."""
    pooled = space.read(keys, readout.kinds[0], site)
    if len(readout.kinds) == 1:
        return pooled
    sink_states = space.read(keys, readout.kinds[1], site)
    positions = space.read_numbers(keys, "sink", site)
    tokens = space.read_numbers(keys, "tokens")
    vectors = drop_sink(readout.pooling, pooled, sink_states, tokens, positions)
    return vectors.astype(np.float32)
