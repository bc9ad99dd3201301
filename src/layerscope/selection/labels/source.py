"""What the layers belong to (a model, or a run whose manifest names one), and the vectors of texts
under every readout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.core.conventions import Reading
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import Readout, all_readouts, kinds_of, parse_readouts
from layerscope.core.sites import pick_layers, site_of
from layerscope.core.templates import get_template
from layerscope.errors import LayerscopeError, ModelError, RunFolderError
from layerscope.evaluation.encode import EncodePass, open_space, readout_vectors, space_description
from layerscope.models import LoadedModel, load
from layerscope.progress import Progress
from layerscope.store import RunFolder
from layerscope.store.embeddings import EmbeddingStore, Space, text_key
from layerscope.store.folder import MANIFEST


def by_template(readouts: Sequence[Readout]) -> dict[str, list[Readout]]:
    """Readouts grouped: those of one template come from one pass."""
    grouped: dict[str, list[Readout]] = {}
    for readout in readouts:
        grouped.setdefault(readout.template, []).append(readout)
    return grouped


def encode_texts(
    model: LoadedModel,
    texts: Sequence[str],
    readouts: Sequence[Readout],
    sites: Sequence[Site],
    store: EmbeddingStore,
    max_length: int,
    bar: Progress,
    batch_size: int | None = None,
) -> tuple[dict[str, Space], dict[str, Any]]:
    """One pass per template over the texts that the store lacks; the spaces by template, and what
    was done."""
    passes = []
    for name, group in by_template(readouts).items():
        template = get_template(name)
        space = open_space(store, model, template, max_length)
        one = EncodePass(model, template, sites, kinds_of(group), space, max_length, batch_size)
        passes.append((one, one.missing(texts)))
    todo = sum(len(missing) for _, missing in passes)
    bar.begin(f"{model.name}|texts", len(texts) * len(passes), len(texts) * len(passes) - todo)
    for one, missing in passes:
        one.run(missing, bar.advance)
    spaces = {one.template.name: one.space for one, _ in passes}
    return spaces, {"texts": len(texts), "encoded": todo, "truncated": truncated(spaces, texts)}


def truncated(spaces: dict[str, Space], texts: Sequence[str]) -> dict[str, int]:
    """How many texts were cut, by template."""
    keys = [text_key(text) for text in texts]
    return {
        name: int(space.read_numbers(keys, "truncated").sum()) for name, space in spaces.items()
    }


@dataclass
class LabeledVectors:
    """Vectors of texts under any readout: centered on these very texts where the readout says so,
    of length 1 where asked."""

    spaces: dict[str, Space]
    texts: Sequence[str]
    sites: Sequence[str]
    unit: bool = False

    def __post_init__(self) -> None:
        self._keys = [text_key(text) for text in self.texts]

    def __call__(self, readout: Readout) -> np.ndarray:
        """(sites, texts, D); NaN at a site where every text has the same vector."""
        space = self.spaces[readout.template]
        whole = np.stack([readout_vectors(space, self._keys, readout, site) for site in self.sites])
        return prepare(whole, readout.centering == "corpus", self.unit)


def prepare(vectors: np.ndarray, center: bool, unit: bool) -> np.ndarray:
    """Vectors (sites, texts, D) centered over the texts, then scaled to length 1, as asked; NaN
    where all are the same.

    The last token of a template is the same for every text at layer 0: nothing can be scored there.
    """
    mean = vectors.mean(1, keepdims=True, dtype=np.float64)
    same = np.abs(vectors - mean).max((1, 2)) <= 1e-6 * np.maximum(
        1e-30, np.abs(vectors).max((1, 2))
    )
    out = (vectors - mean).astype(np.float32) if center else vectors.copy()
    if unit:
        out /= np.maximum(np.linalg.norm(out, axis=-1, keepdims=True), 1e-30)
    out[same] = np.nan
    return out


DEFAULT_MAX_LENGTH = 256


@dataclass
class Opened:
    """A model, loaded or not: where the store holds the vectors of all texts, it need not be
    loaded."""

    identity: dict[str, Any]
    max_length: int
    unit: bool
    run: Path | None = None
    model: LoadedModel | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.identity["name"])

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return int(self.identity["n_blocks"])

    def loaded(self, offline: bool) -> LoadedModel:
        """The model itself; an error where it is not the one that the run was made with."""
        if self.model is not None:
            return self.model
        spec, revision = self.name, self.identity.get("revision")
        if self.identity.get("source") not in ("catalogue", "hub"):
            raise ModelError(
                f"{self.run} was made with {self.name!r}, a local model whose location it did not record, and the store "
                "does not hold the vectors of these examples. Give the model itself instead of the run."
            )
        options = {"revision": revision} if self.identity["source"] == "hub" and revision else {}
        dtype, both = (
            str(self.identity.get("dtype", "float32")),
            bool(self.identity.get("bidirectional")),
        )
        if self.identity.get("adapters"):
            raise ModelError(
                f"{self.run} was made with adapters. Give the adapted model itself in place of the run."
            )
        model = load(spec, offline=offline, dtype=dtype, **options)
        if both and not model.identity["bidirectional"]:
            model = load(spec, offline=offline, dtype=dtype, bidirectional=True, **options)
        if (
            difference := ModelIdentity.of(self.identity).difference(
                ModelIdentity.of(model.identity)
            )
        ) is not None:
            raise ModelError(
                f"{self.name!r} is not the model that {self.run} was made with: they differ in {difference}."
            )
        self.model = model
        return model

    def readouts(self, given: str | Sequence[str] | None, offline: bool) -> list[Readout]:
        """The readouts to compare, the default one always among them; all where none are named."""
        if self.model is None and not self.identity.get("bidirectional"):
            has_cls, has_norm = False, True
        else:
            model = self.loaded(offline)
            has_cls, has_norm = model.has_class_token, model.anatomy.final_norm is not None
        wanted = (
            all_readouts(has_cls=has_cls, has_norm=has_norm)
            if given is None
            else parse_readouts(given, has_cls, has_norm)
        )
        return list(dict.fromkeys([Readout(), *wanted]))

    def layers(self, given: Sequence[int] | None) -> list[int]:
        """The layers to compare, the last one always among them."""
        return sorted({*pick_layers(given, self.n_blocks, self.name), self.n_blocks})

    def stored(
        self,
        store: EmbeddingStore,
        texts: Sequence[str],
        readouts: Sequence[Readout],
        layers: Sequence[int],
    ) -> dict[str, Space] | None:
        """The spaces of the store by template, if they hold everything; nothing is made where they
        do not exist."""
        keys, sites = [text_key(text) for text in texts], [site_of(layer) for layer in layers]
        known = {info.key for info in store.spaces()} if store.root.exists() else set()
        spaces = {}
        for name, group in by_template(readouts).items():
            description = space_description(self.identity, get_template(name), self.max_length)
            space = store.space(description)
            if space.key not in known or not bool(space.has(keys, kinds_of(group), sites).all()):
                return None
            spaces[name] = space
        return spaces


def open_source(source: str | Path | LoadedModel, max_length: int | None, offline: bool) -> Opened:
    """What was given. A model is loaded; the model of a run is loaded only when it is needed."""
    if isinstance(source, LoadedModel):
        return _of_model(source, max_length)
    folder = Path(source)
    if not (folder / MANIFEST).is_file() or (folder / "config.json").is_file():
        a_model = [
            path
            for pattern in ("config.json", "modules.json", "*.gguf")
            for path in folder.glob(pattern)
        ]
        if folder.is_dir() and not a_model:
            raise LayerscopeError(
                f"{folder} is neither a run (no {MANIFEST}) nor a model (no config.json). Give one of them, or a model's name."
            )
        return _of_model(load(source, offline=offline), max_length)
    manifest = RunFolder(folder).manifest() or {}
    if manifest.get("status") != "complete" or "model" not in manifest:
        raise RunFolderError(
            f"the run in {folder} is not finished. Run the same command again: it resumes."
        )
    conventions = manifest.get("conventions", {})
    identity = manifest["model"]
    length = max_length or Reading.of(conventions).max_length or DEFAULT_MAX_LENGTH
    unit = bool(conventions.get("unit_length", identity.get("normalizes")))
    return Opened(identity, _capped(length, identity.get("context_length")), unit, folder)


def _of_model(model: LoadedModel, max_length: int | None) -> Opened:
    length = _capped(max_length or DEFAULT_MAX_LENGTH, model.max_length)
    return Opened(model.identity, length, bool(model.identity.get("normalizes")), None, model)


def _capped(length: int, limit: int | None) -> int:
    return length if limit is None else min(length, limit)
