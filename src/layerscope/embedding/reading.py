"""How texts become vectors: a folder read as it says itself, or layers of a model under a readout. Here or by workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture import expand_sites
from layerscope.core.identity import model_key
from layerscope.core.readout import HEAD, Readout
from layerscope.core.templates import get_template
from layerscope.data.items import PackedTexts
from layerscope.engines import Engine
from layerscope.engines.base import Advance, ModelRecipe, Work
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.evaluation.encode import TextEncoder
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.models import LoadedModel
from layerscope.models.load import find_source
from layerscope.models.source import files_sha256

VECTOR = "vector"
QUERY, DOCUMENT = "query", "document"
"""sentence-transformers' names of the prompts for what is asked and for what is found."""
MAX_LENGTH = 256
_SPAN = 256  # texts that a worker takes at a time
Layers = str | int | Sequence[int] | None


def pick_layers(layers: Layers, blocks: int) -> list[int]:
    """Layers by their numbers; -1 is the last, `all` and None are all of them and the last.

    >>> pick_layers("all", 3), pick_layers([1, -1], 3), pick_layers(None, 3)
    ([0, 1, 2, 3], [1, 3], [3])
    """
    if isinstance(layers, str) and layers != "all":
        raise InvalidValueError(f"layers are whole numbers or 'all', not {layers!r}.")
    given: list[Any] = [-1] if layers is None else [layers] if isinstance(layers, int) else list(layers)
    if layers == "all":
        given = list(range(blocks + 1))
    picked = [int(layer) if int(layer) >= 0 else blocks + 1 + int(layer) for layer in given]
    wrong = [layer for layer, at in zip(given, picked, strict=True) if not 0 <= at <= blocks]
    if wrong or not picked:
        raise InvalidValueError(f"layer {(*wrong, '(none)')[0]} does not exist: layers are 0 to {blocks} (-1: the last).")
    return list(dict.fromkeys(picked))


class Reading(Work[slice, list[np.ndarray]]):
    """What encodes texts, under the names of its columns. Before `open` it can be sent to workers."""

    under_way = 2
    names: tuple[str, ...]
    facts: dict[str, Any]
    width = 1024  # of a vector, about
    prompt = DOCUMENT
    """Which of a folder's own prompts is put before texts, if it has one of that name."""

    def __init__(self, batch_size: int | None = None) -> None:
        self.batch_size = batch_size
        self.texts: Sequence[str] = ()
        self._here = False

    def encode(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        """Vectors (texts, D) under each name."""
        raise NotImplementedError

    def run(self, item: slice, prepared: Any, advance: Advance, common: Any) -> list[np.ndarray]:
        """The vectors of a span of the texts."""
        return self.encode(self.texts[item], advance)

    def name(self, item: slice) -> str:
        """Which texts."""
        return f"texts {item.start} to {item.stop - 1}"

    def vectors(self, engine: Engine, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        """The vectors of texts, by whatever engine there is."""
        if not engine.remote:
            if not self._here:
                self.open()
                self._here = True
            return self.encode(texts, advance)
        self.texts = PackedTexts(texts)
        spans = [slice(start, min(start + _SPAN, len(texts))) for start in range(0, len(texts), _SPAN)]
        found = dict(engine.run(self, spans, advance))
        return [np.concatenate([found[i][k] for i in range(len(spans))]) for k in range(len(self.names))]


class FolderReading(Reading):
    """A sentence-transformers folder, read as it says itself."""

    names = (VECTOR,)

    def __init__(self, folder: Path, facts: dict[str, Any], batch_size: int | None = None) -> None:
        super().__init__(batch_size)
        self.folder, self.facts = folder, facts

    def open(self) -> None:
        """Load the folder."""
        self._model = load_folder(self.folder)

    def encode(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        prompt = {"prompt_name": self.prompt} if self.prompt in (getattr(self._model, "prompts", None) or {}) else {}
        given: dict[str, Any] = {"batch_size": self.batch_size or 32, "show_progress_bar": False, **prompt}
        found = np.asarray(self._model.encode(list(texts), **given), dtype=np.float32)
        advance(len(texts))
        return [found]


class LayerReading(Reading):
    """Layers of a model under a readout, not centered; all of them in one pass."""

    def __init__(
        self, model: LoadedModel, recipe: ModelRecipe | None, layers: Sequence[int], readout: Readout, max_length: int,
        batch_size: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(batch_size)
        if readout.centering == HEAD or readout.sink == "drop":
            raise LayerscopeError(f"the readout {readout.name} needs what `improve` fits. Encode with the folder that it wrote.")
        self._model: LoadedModel | None = model if recipe is None else None
        self.recipe, self.layers, self.readout, self.width = recipe, list(layers), readout, model.width
        self.memory = 0 if recipe is None else recipe.memory
        self.max_length = max_length if model.max_length is None else min(max_length, model.max_length)
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
        kinds = list(self.readout.kinds)
        self._encoder = TextEncoder(model, get_template(self.readout.template), sites, kinds, self.max_length, self.batch_size)

    def encode(self, texts: Sequence[str], advance: Advance) -> list[np.ndarray]:
        vectors, _ = self._encoder.run(self._encoder.read(texts), advance)
        return [vectors[self.readout.kinds[0]][place] for place in self._order]


def open_reading(
    command: Any, model: Any, tokenizer: Any = None, *, layers: Layers = None, readout: str | Readout | None = None,
    max_length: int = MAX_LENGTH,
) -> Reading:  # fmt: skip
    """How a model reads texts. Without layers and a readout, a sentence encoder reads them as it says itself.

    `command` is an open `Command`.
    """
    batch = command.where.batch_size
    if isinstance(model, str | Path) and layers is None and readout is None:
        source = find_source(model, command.offline, command.loading)
        if (source.path / "modules.json").is_file():
            files = [*source.weights, *source.path.glob("**/config*.json"), source.path / "modules.json"]
            facts = {"model": {"name": source.name, "sha256": files_sha256(files)}}
            return FolderReading(source.path.resolve(), facts, batch)
    loaded = command.load(model, tokenizer)
    if loaded.kind != "texts" or loaded.tokenizer is None:
        raise LayerscopeError(f"{loaded.name} reads no texts{'' if loaded.kind == 'texts' else f' but {loaded.kind}'}.")
    chosen = readout if isinstance(readout, Readout) else Readout.parse(readout or "plain/mean")
    return LayerReading(loaded, command.recipe, pick_layers(layers, loaded.n_blocks), chosen.check(), max_length, batch)


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
