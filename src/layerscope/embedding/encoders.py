"""`encode`, and the two ways in which texts become vectors: a folder read as it says itself, or
layers of a model under a readout. Each runs here or on the workers of an engine."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from layerscope.capture import expand_sites
from layerscope.command import Command
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout
from layerscope.core.sites import pick_layers
from layerscope.core.templates import get_template
from layerscope.data.corpus import TextStream
from layerscope.engines import Advance, Engine, ModelRecipe, Work, ignore_progress
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.exporting.pipeline import load_folder
from layerscope.models import LoadedModel
from layerscope.models.load import find_source
from layerscope.models.settings import pick_device, pick_dtype, quiet
from layerscope.models.source import Source, files_sha256
from layerscope.progress import Progress
from layerscope.vectors.encoder import EncodeRequest, TextEncoder

VECTOR = "vector"
QUERY = "query"
DOCUMENT = "document"
"""The two kinds of texts that a folder may read under a prompt or a head of its own."""
MAX_LENGTH = 256
_SPAN = 256  # texts that a worker takes at a time
_FOLDER_OPTIONS = ("dtype", "device", "revision", "trust_remote_code", "allow_pickle")
_SPECIAL = 64  # tokens that a tokenizer may add to a text, those of a template included

log = logging.getLogger("layerscope")
Layers = str | int | Iterable[int] | None
T = TypeVar("T")


def encode(
    model: Any,
    texts: Any,
    *,
    layers: Layers = None,
    readout: str | Readout | None = None,
    column: str | None = None,
    max_length: int | None = None,
    tokenizer: Any = None,
    progress: bool | Progress | None = None,
    engine: str | Engine = "local",
    **options: Any,
) -> np.ndarray:
    """Return the vectors of texts: of one layer (texts, D), or of several in one pass (layers,
    texts, D).

    - `texts`: strings, a data frame, a file, a corpus or a hub dataset. A text without words is
      left out.
    - `layers`: a number, numbers, or `all`. None: the last layer, or what a sentence encoder's
      folder does itself.
    - `max_length`: in tokens; None: 256, or what the folder says.
    - `readout`: how a text becomes one vector; one that centers subtracts the mean over these
      texts.

    `embed` writes them to a file, with the columns that the texts came with.

        vectors = layerscope.encode("smollm2-135m", texts, layers=[10, 20])
        vectors[0].shape  # layer 10: (texts, 576)
    """
    command = Command("encode", options, engine=engine, progress=progress, function=encode)
    if isinstance(texts, str) and " " in texts:
        texts = [texts]
    stream = TextStream(texts, column=column)
    words = [str(row.text) for row in stream.rows()]
    if isinstance(readout, str):
        readout = Readout.parse(readout)
    is_centered = readout is not None and readout.centering == "corpus"
    if readout is not None and is_centered:
        readout = replace(readout, centering="none")
    with command:
        encoder = open_encoder(
            command, model, tokenizer, layers=layers, readout=readout, max_length=max_length
        )
        command.bar.begin(f"{encoder.facts['model']['name']}|texts", len(words))
        embedded = encoder.embed(command.engine, words, command.bar.advance)
    encoder.warn_of_cuts(embedded.cut, len(words))
    vectors = embedded.vectors
    if is_centered:
        vectors = [rows - rows.mean(0, dtype=np.float64).astype(np.float32) for rows in vectors]
    return np.stack(vectors) if isinstance(layers, Iterable) else vectors[0]


@dataclass(frozen=True)
class Embedded:
    """The vectors (texts, D) under each name of an encoder, and how many texts were cut."""

    vectors: list[np.ndarray]
    cut: int


class Encoder(ABC):
    """A way to encode texts. It can be sent to workers before it is opened.

    `names` are the columns of its vectors. `facts` decide the vectors; a file that holds them
    records the facts. `width` is that of a vector, about.
    """

    names: tuple[str, ...]
    facts: dict[str, Any]
    width = 1024
    memory = 0
    device: str | None = None

    @abstractmethod
    def open(self) -> None:
        """Load the model, unless it is loaded."""

    @abstractmethod
    def encode(self, texts: Sequence[str], kind: str, advance: Advance) -> Embedded:
        """Encode texts of a kind (`query` or `document`) in this process."""

    def embed(
        self,
        engine: Engine,
        texts: Sequence[str],
        advance: Advance = ignore_progress,
        kind: str = DOCUMENT,
    ) -> Embedded:
        """Encode texts by an engine; raise if a vector is not finite."""
        if engine.remote:
            starts = range(0, len(texts), _SPAN)
            spans = [slice(start, min(start + _SPAN, len(texts))) for start in starts]
            results = dict(engine.run(EmbedWork(self, texts, kind), spans, advance))
            columns = zip(*(results[i].vectors for i in range(len(spans))), strict=True)
            vectors = [np.concatenate(column) for column in columns]
            embedded = Embedded(vectors, sum(result.cut for result in results.values()))
        else:
            with quiet():
                self.open()
            embedded = self.encode(texts, kind, advance)
        for name, rows in zip(self.names, embedded.vectors, strict=True):
            wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if len(wrong):
                raise LayerscopeError(
                    f"{len(wrong)} of {len(rows)} vectors ({name}) are not finite; the first is of "
                    f"{texts[wrong[0]][:60]!r}."
                )
        return embedded

    def warn_of_cuts(self, cut: int, total: int) -> None:
        """Warn once that texts were too long: their vectors are of their beginnings."""
        if cut:
            length = self.facts["max_length"]
            limit = f"than {length} tokens" if length else "than the folder reads"
            log.warning(
                "%s of %s texts are longer %s, and were cut; max_length= sets the limit",
                f"{cut:,}",
                f"{total:,}",
                limit,
            )


class EmbedWork(Work[slice, Embedded]):
    """The work of a worker: it takes a span of the texts and returns their vectors."""

    def __init__(self, encoder: Encoder, texts: Sequence[str], kind: str) -> None:
        self.encoder = encoder
        self.texts = texts
        self.kind = kind
        self.memory = encoder.memory

    def open(self) -> None:
        """Load the model."""
        self.encoder.open()
        self.device = self.encoder.device

    def run(self, item: slice, advance: Advance) -> Embedded:
        """Return the vectors of a span."""
        return self.encoder.encode(self.texts[item], self.kind, advance)

    def name(self, item: slice) -> str:
        """Return the numbers of the texts in a span."""
        return f"texts {item.start} to {item.stop - 1}"


class FolderEncoder(Encoder):
    """A sentence-transformers folder, read as it says itself."""

    names = (VECTOR,)

    def __init__(
        self, folder: Path, facts: dict[str, Any], batch_size: int | None, **placement: Any
    ) -> None:
        self.folder = folder
        self.facts = facts
        self.batch_size = batch_size or 32
        self.placement = placement
        self._model: Any = None

    def open(self) -> None:
        if self._model is None:
            self._model = load_folder(self.folder).to(**self.placement)
            length = self.facts["max_length"]
            if length is not None:
                self._model.max_seq_length = min(length, self._model.max_seq_length or length)

    def encode(self, texts: Sequence[str], kind: str, advance: Advance) -> Embedded:
        model = self._model
        cut = self._count_long(model.prompts.get(kind) or "", texts)
        encode = model.encode_query if kind == QUERY else model.encode_document
        vectors = encode(list(texts), batch_size=self.batch_size, show_progress_bar=False)
        advance(len(texts))
        return Embedded([np.asarray(vectors, dtype=np.float32)], cut)

    def _count_long(self, prompt: str, texts: Sequence[str]) -> int:
        """Return how many texts have more tokens than are read; short ones are not tokenized."""
        limit = self._model.max_seq_length
        if limit is None:
            return 0
        # a token has a byte at least
        prompted = [prompt + text for text in texts]
        long = [text for text in prompted if 4 * len(text) + _SPECIAL > limit]
        if not long:
            return 0
        tokens = self._model.tokenizer(long, truncation=False, padding=False, verbose=False)
        return sum(len(ids) > limit for ids in tokens["input_ids"])


class LayerEncoder(Encoder):
    """Layers of a model under a readout, not centered; all of them in one pass.

    A model with a `recipe` is loaded by the worker.
    """

    def __init__(
        self,
        model: LoadedModel,
        recipe: ModelRecipe | None,
        layers: Sequence[int],
        readout: Readout,
        max_length: int,
        batch_size: int | None = None,
    ) -> None:
        if readout.sink == "drop":
            raise LayerscopeError(
                f"the readout {readout.name} leaves out the sink token, which vectors of files "
                "do not support. Give a readout that keeps it."
            )
        self.recipe = recipe
        self.memory = 0 if recipe is None else recipe.memory
        self.layers = list(layers)
        self.reading = readout.kinds[0]
        self.width = model.width
        self.names = (VECTOR,) if len(layers) == 1 else tuple(f"layer_{layer}" for layer in layers)
        length = min(max_length, model.max_length or max_length)
        sites = {site.layer: site for site in expand_sites(None, model.anatomy)}
        self.request = EncodeRequest(
            get_template(readout.template),
            tuple(sites[layer] for layer in sorted(self.layers)),
            (self.reading,),
            length,
            batch_size,
        )
        self.facts = {
            "model": {"name": model.name, **model_key(model.identity)},
            "layers": self.layers,
            "readout": readout.name,
            "max_length": length,
        }
        self._encoder = TextEncoder(model, self.request) if recipe is None else None

    def open(self) -> None:
        if self._encoder is None:
            assert self.recipe is not None
            self._encoder = TextEncoder(self.recipe.open(), self.request)
        self.device = self._encoder.model.device.type

    def encode(self, texts: Sequence[str], kind: str, advance: Advance) -> Embedded:
        assert self._encoder is not None
        encoded = self._encoder.run(self._encoder.tokenize(texts), advance)
        rows = dict(zip(sorted(self.layers), encoded.vectors[self.reading], strict=True))
        vectors = [rows[layer] for layer in self.layers]
        return Embedded(vectors, int(encoded.numbers["truncated"].sum()))


def open_encoder(
    command: Command,
    model: Any,
    tokenizer: Any = None,
    *,
    layers: Layers = None,
    readout: Readout | None = None,
    max_length: int | None = None,
) -> Encoder:
    """Return the encoder of a model. Without layers and a readout, a sentence encoder reads texts
    as it says itself. `command` is open."""
    batch_size = command.where.batch_size
    if isinstance(model, str | Path) and layers is None and readout is None:
        source = find_source(model, command.loading)
        if source.pipeline is not None:
            options = {"tokenizer": tokenizer, **command.loading}
            return _folder_encoder(source, source.pipeline, options, max_length, batch_size)
    loaded = command.load(model, tokenizer)
    if loaded.kind != "texts" or loaded.tokenizer is None:
        instead = "" if loaded.kind == "texts" else f" but {loaded.kind}"
        raise LayerscopeError(f"{loaded.name} reads no texts{instead}.")
    return LayerEncoder(
        loaded,
        command.recipe,
        _parse_layers(layers, loaded.n_blocks, loaded.name),
        (readout or Readout()).check(),
        max_length or MAX_LENGTH,
        batch_size,
    )


def _parse_layers(layers: Layers, blocks: int, model: str) -> list[int]:
    """Return layers in the order given; the last one if none is named."""
    if isinstance(layers, str):
        if layers != "all":
            raise InvalidValueError(f"layers are whole numbers or 'all', not {layers!r}.")
        return pick_layers(None, blocks, model)
    if layers is None:
        return [blocks]
    numbers = [*layers] if isinstance(layers, Iterable) else [layers]
    pick_layers(numbers, blocks, model)  # raises for those that do not exist
    return list(dict.fromkeys(int(layer) % (blocks + 1) for layer in numbers))


def _folder_encoder(
    source: Source,
    pipeline: Path,
    options: Mapping[str, Any],
    max_length: int | None,
    batch_size: int | None,
) -> FolderEncoder:
    unused = [name for name, value in options.items() if value and name not in _FOLDER_OPTIONS]
    if unused:
        raise InvalidValueError(
            f"{source.name} is a sentence encoder, read as its folder says: it takes no "
            f"{unused[0]}=. Leave it out, or name layers=."
        )
    dtype = pick_dtype(options.get("dtype", "auto"))
    placement: dict[str, Any] = {}
    if options.get("device") is not None:
        placement["device"] = pick_device(options["device"])
    if dtype != "auto":
        placement["dtype"] = dtype
    root = pipeline.resolve()
    files = {file.resolve() for file in source.weights}
    for pattern in ("*.safetensors", "*.json", "*.txt", "*.model"):
        files.update(file for file in root.rglob(pattern) if file.is_file())
    facts = {
        "model": {"name": source.name, "sha256": files_sha256(files)},
        "max_length": max_length,
        "dtype": str(dtype),
    }
    return FolderEncoder(root, facts, batch_size, **placement)


def without_name(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that decide the vectors: a model's name is only a spelling of it."""
    model = facts.get("model")
    if not isinstance(model, Mapping):
        return dict(facts)
    return {**facts, "model": {name: model[name] for name in model if name != "name"}}


def in_blocks(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yield items in lists of `size`, the last one shorter."""
    while block := list(islice(items, size)):
        yield block
