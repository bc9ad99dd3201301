"""How texts become vectors: a folder read as it says itself, or layers of a model under a readout.
Here or by workers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture import expand_sites
from layerscope.core.identity import model_key
from layerscope.core.readout import HEAD, Readout
from layerscope.core.sites import pick_layers
from layerscope.core.templates import get_template
from layerscope.data.items import PackedTexts
from layerscope.engines import Engine
from layerscope.engines.base import Advance, ModelRecipe, Work
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.models import LoadedModel
from layerscope.models.load import find_source
from layerscope.models.settings import pick_device, pick_dtype, quiet
from layerscope.models.source import Source, files_sha256
from layerscope.vectors.encoder import EncodeRequest, TextEncoder

VECTOR = "vector"
QUERY, DOCUMENT = "query", "document"
"""sentence-transformers' names of the prompts for what is asked and for what is found."""
MAX_LENGTH = 256
_SPAN = 256  # texts that a worker takes at a time
_SPECIAL = 64  # tokens that a tokenizer may add to a text, a template's included
log = logging.getLogger("layerscope")
Layers = str | int | Iterable[int] | None


def _layers(layers: Layers, blocks: int, model: str) -> list[int]:
    """The wanted layers in the order given; the last where none is named."""
    if isinstance(layers, str):
        if layers != "all":
            raise InvalidValueError(f"layers are whole numbers or 'all', not {layers!r}.")
        return pick_layers(None, blocks, model)
    given = [-1] if layers is None else [*layers] if isinstance(layers, Iterable) else [layers]
    pick_layers(given, blocks, model)  # those that do not exist are refused
    return list(dict.fromkeys(int(layer) % (blocks + 1) for layer in given))


class Encoder(Work[slice, list[np.ndarray]]):
    """What encodes texts, under the names of its columns. Before `open` it can be sent to
    workers."""

    under_way = 2
    names: tuple[str, ...]
    facts: dict[str, Any]
    width = 1024  # of a vector, about
    prompt = DOCUMENT
    """As what texts are read: a folder may have a prompt or a head of its own for each."""

    def __init__(self, batch_size: int | None = None) -> None:
        self.batch_size = batch_size
        self.texts: Sequence[str] = ()
        self.cut = 0  # texts that were too long, so far
        self._here = False

    def encode(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        """Vectors (texts, D) under each name."""
        raise NotImplementedError

    def run(self, item: slice, prepared: Any, advance: Advance, common: Any) -> list[np.ndarray]:
        """The vectors of a span of the texts, and how many of them were cut."""
        before = self.cut
        return [*self.encode(self.texts[item], advance), np.array(self.cut - before)]

    def name(self, item: slice) -> str:
        """Which texts."""
        return f"texts {item.start} to {item.stop - 1}"

    def vectors(self, engine: Engine, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        """The vectors of texts, by whatever engine there is."""
        vectors = (
            self._there(engine, texts, advance) if engine.remote else self._locally(texts, advance)
        )
        for name, rows in zip(self.names, vectors, strict=True):
            wrong = np.flatnonzero(~np.isfinite(rows).all(axis=1))
            if len(wrong):
                shown = repr(texts[wrong[0]][:60])
                raise LayerscopeError(
                    f"{len(wrong)} of {len(rows)} vectors ({name}) are not finite; the first is of {shown}."
                )
        return vectors

    def say_cuts(self, cut: int, of: int) -> None:
        """Tell once that texts were too long: their vectors are of their beginnings."""
        if cut:
            most = self.facts["max_length"]
            limit = f"than {most} tokens" if most else "than the folder reads"
            log.warning(
                "%s of %s texts are longer %s, and were cut; max_length= sets the limit",
                f"{cut:,}",
                f"{of:,}",
                limit,
            )

    def _locally(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        if not self._here:
            with quiet():
                self.open()
            self._here = True
        return self.encode(texts, advance)

    def _there(self, engine: Engine, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        self.texts = PackedTexts(texts)
        spans = [
            slice(start, min(start + _SPAN, len(texts))) for start in range(0, len(texts), _SPAN)
        ]
        found = dict(engine.run(self, spans, advance))
        self.cut += sum(int(one[-1]) for one in found.values())
        return [
            np.concatenate([found[i][k] for i in range(len(spans))]) for k in range(len(self.names))
        ]


class FolderEncoder(Encoder):
    """A sentence-transformers folder, read as it says itself."""

    names = (VECTOR,)

    def __init__(
        self, folder: Path, facts: dict[str, Any], batch_size: int | None = None, **to: Any
    ) -> None:
        super().__init__(batch_size)
        self.folder, self.facts, self.to = folder, facts, to

    def open(self) -> None:
        """Load the folder."""
        self._model, most = load_folder(self.folder).to(**self.to), self.facts["max_length"]
        if most is not None:
            self._model.max_seq_length = min(most, self._model.max_seq_length or most)

    def encode(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        self.cut += self._too_long(
            texts, (getattr(self._model, "prompts", None) or {}).get(self.prompt, "")
        )
        encode = self._model.encode_query if self.prompt == QUERY else self._model.encode_document
        given: dict[str, Any] = {"batch_size": self.batch_size or 32, "show_progress_bar": False}
        found = np.asarray(encode(list(texts), **given), dtype=np.float32)
        advance(len(texts))
        return [found]

    def _too_long(self, texts: Sequence[str], prompt: str) -> int:
        """How many texts have more tokens than are read. A token has a byte at least: short texts
        need no look."""
        most, tokenizer = self._model.max_seq_length, self._model.tokenizer
        if most is None or not callable(tokenizer):
            return 0
        long = [
            prompt + text
            for text in texts
            if len((prompt + text).encode("utf-8", "replace")) + _SPECIAL > most
        ]
        found = (
            tokenizer(long, truncation=False, padding=False, verbose=False)["input_ids"]
            if long
            else []
        )
        return sum(len(ids) > most for ids in found)


class LayerEncoder(Encoder):
    """Layers of a model under a readout, not centered; all of them in one pass."""

    def __init__(
        self, model: LoadedModel, recipe: ModelRecipe | None, layers: Sequence[int], readout: Readout, max_length: int,
        batch_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size)
        if readout.centering == HEAD or readout.sink == "drop":
            raise LayerscopeError(
                f"the readout {readout.name} needs what `improve` fits. Encode with the folder that it wrote."
            )
        self._model: LoadedModel | None = model if recipe is None else None
        self.recipe, self.layers, self.readout, self.width = (
            recipe,
            list(layers),
            readout,
            model.width,
        )
        self.memory = 0 if recipe is None else recipe.memory
        self.max_length = (
            max_length if model.max_length is None else min(max_length, model.max_length)
        )
        self.names = (VECTOR,) if len(layers) == 1 else tuple(f"layer_{layer}" for layer in layers)
        self.facts = {
            "model": {"name": model.name, **model_key(model.identity)},
            "layers": self.layers, "readout": readout.name, "max_length": self.max_length,
        }  # fmt: skip

    def open(self) -> None:
        """Load the model, if it is not here."""
        model = self._model or self.recipe.open()  # type: ignore[union-attr]
        self.device = model.device.type
        sites = [site for site in expand_sites(None, model.anatomy) if site.layer in self.layers]
        order = {site.layer: i for i, site in enumerate(sites)}
        self._order = [order[layer] for layer in self.layers]
        template = get_template(self.readout.template)
        request = EncodeRequest(
            template, tuple(sites), self.readout.kinds, self.max_length, self.batch_size
        )
        self._encoder = TextEncoder(model, request)

    def encode(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        encoded = self._encoder.run(self._encoder.tokenize(texts), advance)
        self.cut += int(encoded.numbers["truncated"].sum())
        vectors = encoded.vectors[self.readout.kinds[0]]
        return [vectors[place] for place in self._order]


def open_encoder(
    command: Any, model: Any, tokenizer: Any = None, *, layers: Layers = None, readout: str | Readout | None = None,
    max_length: int | None = None,
) -> Encoder:  # fmt: skip
    """How a model reads texts. Without layers and a readout, a sentence encoder reads them as it
    says itself.

    `command` is an open `Command`.
    """
    batch = command.where.batch_size
    if isinstance(model, Encoder):
        return model
    if isinstance(model, str | Path) and layers is None and readout is None:
        source = find_source(model, command.offline, command.loading)
        if source.pipeline is not None:
            return _folder_encoder(
                source, {"tokenizer": tokenizer, **command.loading}, max_length, batch
            )
    loaded = command.load(model, tokenizer)
    if loaded.kind != "texts" or loaded.tokenizer is None:
        raise LayerscopeError(
            f"{loaded.name} reads no texts{'' if loaded.kind == 'texts' else f' but {loaded.kind}'}."
        )
    chosen = readout if isinstance(readout, Readout) else Readout.parse(readout or "plain/mean")
    return LayerEncoder(
        loaded,
        command.recipe,
        _layers(layers, loaded.n_blocks, loaded.name),
        chosen.check(),
        max_length or MAX_LENGTH,
        batch,
    )


def _folder_encoder(
    source: Source, given: dict[str, Any], max_length: int | None, batch: int | None
) -> FolderEncoder:
    root, takes = (
        source.pipeline.resolve(),  # type: ignore[union-attr]
        ("dtype", "device", "revision", "trust_remote_code", "allow_pickle"),
    )
    other = next((name for name, value in given.items() if value and name not in takes), None)
    if other is not None:
        raise InvalidValueError(
            f"{source.name} is a sentence encoder, read as its folder says: it takes no {other}=. Leave it out, or name layers=."
        )
    dtype, device = pick_dtype(given.get("dtype", "auto")), given.get("device")
    to = {} if device is None else {"device": pick_device(device)}
    files = {
        file
        for kind in ("*.safetensors", "*.json", "*.txt", "*.model")
        for file in root.rglob(kind)
        if file.is_file()
    }
    facts = {
        "model": {
            "name": source.name,
            "sha256": files_sha256(files.union(file.resolve() for file in source.weights)),
        },
        "max_length": max_length, "dtype": str(dtype),
    }  # fmt: skip
    return FolderEncoder(root, facts, batch, **to, **({} if dtype == "auto" else {"dtype": dtype}))


def decisive(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that decide the vectors: without the model's name, which is as it was
    spelled."""
    model = facts.get("model")
    if not isinstance(model, Mapping) or not (model.get("sha256") or model.get("weights_sha256")):
        return dict(facts)
    return {**facts, "model": {name: model[name] for name in model if name != "name"}}


def in_blocks(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Items in lists of `size`, the last one shorter."""
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
