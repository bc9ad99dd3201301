"""The model of a choice by labels, given or named by a run, and the vectors of the labeled texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.core import heads
from layerscope.core.conventions import Reading
from layerscope.core.identity import ModelIdentity
from layerscope.core.readout import Readout, all_readouts, parse_readouts
from layerscope.core.sites import pick_layers
from layerscope.errors import LayerscopeError, ModelError, RunFolderError
from layerscope.models import LoadedModel, load
from layerscope.progress import Progress
from layerscope.store import RunFolder
from layerscope.store.folder import MANIFEST
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, make_requests, read_readout


def encode_texts(
    model: LoadedModel,
    texts: Sequence[str],
    readouts: Sequence[Readout],
    sites: Sequence[Site],
    store: VectorStore,
    max_length: int,
    bar: Progress,
    batch_size: int | None = None,
) -> tuple[dict[str, VectorSpace], int]:
    """Run the texts that the store lacks under each template.

    Returns the spaces by template, and the number of texts that were run.
    """
    requests = make_requests(readouts, sites, max_length, batch_size)
    missing = find_missing(model, store, requests, texts)
    todo = sum(len(part.texts) for part in missing)
    total = len(texts) * len(missing)
    bar.begin(f"{model.name}|texts", total, total - todo)
    encode(model, missing, advance=bar.advance)
    return {part.request.template.name: part.space for part in missing}, todo


@dataclass
class LabeledVectors:
    """Vectors of texts under any readout: centered on these very texts where the readout says so,
    of length 1 where asked."""

    spaces: dict[str, VectorSpace]
    texts: Sequence[str]
    sites: Sequence[str]
    unit: bool = False

    def __post_init__(self) -> None:
        self._keys = [text_key(text) for text in self.texts]

    def __call__(self, readout: Readout) -> np.ndarray:
        """(sites, texts, D); NaN at a site where every text has the same vector."""
        space = self.spaces[readout.template]
        whole = np.stack([read_readout(space, self._keys, readout, site) for site in self.sites])
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
        out = heads.unit(out)
    out[same] = np.nan
    return out


DEFAULT_MAX_LENGTH = 256


@dataclass(frozen=True)
class Opened:
    """A loaded model, how it reads the examples, and the run that named it, if one did."""

    model: LoadedModel
    max_length: int
    unit: bool
    run: Path | None = None

    def readouts(self, given: str | Sequence[str] | None) -> list[Readout]:
        """The readouts to compare, the default one always among them; all where none are named."""
        has_cls, has_norm = self.model.has_class_token, self.model.anatomy.final_norm is not None
        wanted = (
            all_readouts(has_cls=has_cls, has_norm=has_norm)
            if given is None
            else parse_readouts(given, has_cls, has_norm)
        )
        return list(dict.fromkeys([Readout(), *wanted]))

    def layers(self, given: Sequence[int] | None) -> list[int]:
        """The layers to compare, the last one always among them."""
        blocks = self.model.n_blocks
        return sorted({*pick_layers(given, blocks, self.model.name), blocks})


def open_source(source: str | Path | LoadedModel, max_length: int | None) -> Opened:
    """Load a model, or the model of a finished run."""
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
        return _of_model(load(source), max_length)
    manifest = RunFolder(folder).manifest() or {}
    if manifest.get("status") != "complete" or "model" not in manifest:
        raise RunFolderError(
            f"the run in {folder} is not finished. Run the same command again: it resumes."
        )
    conventions = manifest.get("conventions", {})
    model = _model_of_run(folder, manifest["model"])
    length = max_length or Reading.of(conventions).max_length or DEFAULT_MAX_LENGTH
    unit = bool(conventions.get("unit_length", model.identity.get("normalizes")))
    return Opened(model, _capped(length, model.max_length), unit, folder)


def _model_of_run(run: Path, identity: dict[str, Any]) -> LoadedModel:
    """The model that a run was made with; an error where it cannot be loaded by its name."""
    name = str(identity["name"])
    if identity.get("source") not in ("catalogue", "hub") or identity.get("adapters"):
        raise ModelError(
            f"{run} was made with {name!r}, a local model whose location it did not record, or one with adapters. "
            "Give the model itself instead of the run."
        )
    options: dict[str, Any] = {"dtype": str(identity.get("dtype", "float32"))}
    if identity["source"] == "hub" and identity.get("revision"):
        options["revision"] = identity["revision"]
    model = load(name, **options)
    if identity.get("bidirectional") and not model.identity["bidirectional"]:
        model = load(name, bidirectional=True, **options)
    difference = ModelIdentity.of(identity).difference(ModelIdentity.of(model.identity))
    if difference is not None:
        raise ModelError(
            f"{name!r} is not the model that {run} was made with: they differ in {difference}."
        )
    return model


def _of_model(model: LoadedModel, max_length: int | None) -> Opened:
    length = _capped(max_length or DEFAULT_MAX_LENGTH, model.max_length)
    return Opened(model, length, bool(model.identity.get("normalizes")))


def _capped(length: int, limit: int | None) -> int:
    return length if limit is None else min(length, limit)
