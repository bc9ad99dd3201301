"""Where a sentence of the user's lies among the texts of a map, at every layer: the model answers
while a page is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.cache import cache_dir
from layerscope.capture import expand_sites
from layerscope.core.heads import unit
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import HEAD, Readout
from layerscope.core.sites import site_of
from layerscope.core.templates import get_template
from layerscope.errors import LayerscopeError, one_line
from layerscope.evaluation.encode import EncodePass, TextEncoder, open_space, readout_vectors
from layerscope.improving.mapping import BETTER, TODAY
from layerscope.improving.result import Improved
from layerscope.maps import NEIGHBORS, LayerMap
from layerscope.models import LoadedModel, load
from layerscope.store.embeddings import EmbeddingStore

MOST_LETTERS = 20_000

_Encode = Callable[[str], np.ndarray]


@dataclass
class _Side:
    """One reading: its layers, the texts' vectors of length 1 (layers, texts, D), what was
    subtracted, and what reads a text."""

    layers: list[int]
    rows: np.ndarray
    mean: np.ndarray
    encode: _Encode

    @classmethod
    def of(
        cls, layers: Sequence[int], vectors: np.ndarray, encode: _Encode, centered: bool
    ) -> _Side:
        mean = (
            vectors.mean(1, keepdims=True)
            if centered
            else np.zeros((len(layers), 1, vectors.shape[2]), np.float32)
        )
        return cls(list(layers), unit(vectors - mean), mean, encode)

    def nearest(self, text: str) -> dict[str, Any]:
        """The nearest texts at every layer, with their cosines."""
        asked = unit(self.encode(text)[:, None] - self.mean)[:, 0]
        cosines = np.nan_to_num((self.rows @ asked[:, :, None])[:, :, 0])
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBORS]
        found = np.take_along_axis(cosines, order, 1)
        return {
            "layers": self.layers,
            "near": order.tolist(),
            "cosine": np.round(found.astype(float), 4).tolist(),
        }


@dataclass
class Asker:
    """Answers questions about one run. It gets ready in a thread of its own; until then, and where
    it cannot, it says why."""

    run: Any
    model: str | Path | None = None
    store: Path | None = None
    why: str | None = "The model is being loaded. Ask again in a moment."
    sides: dict[str, _Side] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Get ready, beside the server."""
        threading.Thread(target=self.prepare, daemon=True).start()

    def prepare(self) -> None:
        """Load the model and the texts' vectors. Whatever is in the way is told to who asks."""
        try:
            self.sides = self._sides()
            next(iter(self.sides.values())).nearest(
                "a text"
            )  # the first one pays for what is done once
            self.why = None
        except Exception as error:  # a page that cannot answer is still a page
            kind = "" if isinstance(error, LayerscopeError) else f"{type(error).__name__}: "
            self.why = f"The model cannot be asked: {kind}{one_line(str(error))}"

    def answer(self, text: str) -> dict[str, Any]:
        """The nearest texts under every reading, or why there are none. One question at a time."""
        if self.why is not None:
            return {"why": self.why}
        if not text.strip():
            return {"why": "Write a sentence first."}
        try:
            with self._turn:
                return {
                    "readings": {
                        name: side.nearest(text[:MOST_LETTERS]) for name, side in self.sides.items()
                    }
                }
        except Exception as error:  # such as half a sign, or a text without tokens
            return {"why": f"The model cannot read this: {one_line(str(error))}"}

    def _sides(self) -> dict[str, _Side]:
        if not isinstance(self.run, Improved):
            raise LayerscopeError("only a run of `improve` knows how to read a sentence.")
        told, made = self.run.manifest["model"], self.run.find_map()
        if made is None:
            raise LayerscopeError("this run kept no map.")
        if made.texts is None:
            raise LayerscopeError("this run kept no texts (`--no-texts`) that could be found.")
        if self.model is None and told.get("source") == "module":
            raise LayerscopeError(
                "its model was given as an object; name one: `layerscope open RUN --model MODEL`."
            )
        try:  # nothing is downloaded: a stranger's run must not choose what is
            model = load(self.model or str(told["name"]), offline=True)
        except LayerscopeError as error:
            raise LayerscopeError(
                f"the run's model is not available here: {one_line(str(error))} Name it with `layerscope open RUN --model MODEL`."
            ) from None
        if not ModelIdentity.of(model.identity).same_as(ModelIdentity.of(told)):
            raise LayerscopeError(
                f"{model.name} has other weights or settings than the model of this run."
            )
        length = int(self.run.manifest["conventions"]["max_length"])
        sides: dict[str, _Side] = {}
        chosen = Readout(*str(self.run.choice.readout).rsplit("/", 4))
        today = (
            chosen if self.run.manifest["evidence"].get("kept_default") else Readout()
        )  # as the map was made
        for reading in made.readings:
            readout = today if reading.name == TODAY else chosen
            if reading.name == BETTER and (
                readout.centering == HEAD or self.run.manifest["evidence"].get("trained")
            ):
                sides[reading.name] = self._exported(made)
            else:
                sides[reading.name] = self._stored(
                    model, made, readout, reading.layout.layers, length
                )
        return sides

    def _stored(
        self,
        model: LoadedModel,
        made: LayerMap,
        readout: Readout,
        layers: Sequence[int],
        length: int,
    ) -> _Side:
        """A readout at every layer; the texts' vectors are in the embedding store."""
        store = EmbeddingStore(self.store or cache_dir() / "embeddings", None)
        template, sites = (
            get_template(readout.template),
            [s for s in expand_sites(None, model.anatomy) if s.layer in set(layers)],
        )
        space, keys = (
            open_space(store, model, template, length),
            [row.tobytes() for row in made.keys],
        )
        one = EncodePass(model, template, sites, readout.kinds, space, length)
        if not all(space.has(keys, one.kinds, [site.name for site in sites])):
            raise LayerscopeError(
                "the texts' vectors are no longer in the embedding store. Run the same `improve` again, or name the "
                "store: `layerscope open RUN --store FOLDER`."
            )
        encoder = TextEncoder(model, template, sites, readout.kinds, length)

        def encode(text: str) -> np.ndarray:
            return encoder.run(encoder.read([text]), lambda n: None)[0][readout.kinds[0]][:, 0]

        vectors = np.stack(
            [readout_vectors(space, keys, readout, site_of(layer)) for layer in layers]
        )
        return _Side.of(layers, vectors, encode, readout.centering == "corpus")

    def _exported(self, made: LayerMap) -> _Side:
        """What was exported, at its one layer; it reads the texts now."""
        assert made.texts is not None
        vectors = self.run.encode(made.texts)[None]
        return _Side.of(
            [self.run.choice.layer], vectors, lambda text: self.run.encode([text]), centered=False
        )
