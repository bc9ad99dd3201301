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
from layerscope.core.runs import MANIFEST, finished_manifest
from layerscope.core.sites import pick_layers
from layerscope.errors import LayerscopeError, ModelError
from layerscope.models import LoadedModel, load
from layerscope.progress import Progress
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, make_requests, read_readout

DEFAULT_MAX_LENGTH = 256


def encode_texts(
    model: LoadedModel,
    texts: Sequence[str],
    readouts: Sequence[Readout],
    sites: Sequence[Site],
    store: VectorStore,
    max_length: int,
    bar: Progress,
) -> dict[str, VectorSpace]:
    """Run the texts that the store lacks under each template; return the spaces by template."""
    requests = make_requests(readouts, sites, max_length)
    missing = find_missing(model, store, requests, texts)
    total = len(texts) * len(missing)
    bar.begin(f"{model.name}|texts", total, total - sum(len(lacking.texts) for lacking in missing))
    encode(model, missing, advance=bar.advance)
    return {lacking.request.template.name: lacking.space for lacking in missing}


@dataclass(frozen=True)
class LabeledVectors:
    """Vectors of texts under any readout: centered on these very texts where the readout says so,
    of length 1 with `unit`."""

    spaces: dict[str, VectorSpace]
    texts: Sequence[str]
    sites: Sequence[str]
    unit: bool = False

    def __call__(self, readout: Readout) -> np.ndarray:
        """Return (sites, texts, D); NaN at a site where every text has the same vector."""
        keys = [text_key(text) for text in self.texts]
        space = self.spaces[readout.template]
        vectors = np.stack([read_readout(space, keys, readout, site) for site in self.sites])
        return prepare(vectors, readout.centering == "corpus", self.unit)


def prepare(vectors: np.ndarray, center: bool, unit: bool) -> np.ndarray:
    """Return vectors (sites, texts, D) centered over the texts, then scaled to length 1, as asked.

    They are NaN where all are the same. The last token of a template is the same for every text at
    layer 0: nothing can be scored there.
    """
    mean = vectors.mean(1, keepdims=True, dtype=np.float64)
    size = np.maximum(1e-30, np.abs(vectors).max((1, 2)))
    is_same = np.abs(vectors - mean).max((1, 2)) <= 1e-6 * size
    prepared = (vectors - mean).astype(np.float32) if center else vectors.copy()
    if unit:
        prepared = heads.unit(prepared)
    prepared[is_same] = np.nan
    return prepared


@dataclass(frozen=True)
class LabelSource:
    """A loaded model, how it reads the examples, and the run that named it, if one did."""

    model: LoadedModel
    max_length: int
    unit: bool
    run: Path | None = None

    def readouts(self, names: str | Sequence[str] | None) -> list[Readout]:
        """Return the readouts to compare, the default one always among them; None: all."""
        has_cls = self.model.has_class_token
        has_norm = self.model.anatomy.final_norm is not None
        if names is None:
            readouts = all_readouts(has_cls=has_cls, has_norm=has_norm)
        else:
            readouts = parse_readouts(names, has_cls, has_norm)
        return list(dict.fromkeys([Readout(), *readouts]))

    def layers(self, layers: Sequence[int] | None) -> list[int]:
        """Return the layers to compare, the last one always among them; None: all."""
        blocks = self.model.n_blocks
        return sorted({*pick_layers(layers, blocks, self.model.name), blocks})


def open_source(source: str | Path | LoadedModel, max_length: int | None) -> LabelSource:
    """Load a model, or the model of a finished run."""
    run: Path | None = None
    conventions: dict[str, Any] = {}
    if isinstance(source, LoadedModel):
        model = source
    elif _is_run(Path(source)):
        run = Path(source)
        manifest = finished_manifest(run)
        conventions = manifest["conventions"]
        model = _load_model_of(run, manifest["model"])
    else:
        model = load(source)
    length = max_length or Reading.of(conventions).max_length or DEFAULT_MAX_LENGTH
    unit = bool(conventions.get("unit_length", model.identity.get("normalizes")))
    return LabelSource(model, min(length, model.max_length or length), unit, run)


def _is_run(folder: Path) -> bool:
    """Return whether a folder holds a run; raise for a folder without a run or a model."""
    files = ("config.json", "modules.json", "*.gguf")
    has_manifest = (folder / MANIFEST).is_file()
    if folder.is_dir() and not has_manifest and not any(any(folder.glob(name)) for name in files):
        raise LayerscopeError(
            f"{folder} is neither a run (no {MANIFEST}) nor a model (no config.json). Give one of "
            "them, or a model's name."
        )
    return has_manifest and not (folder / "config.json").is_file()


def _load_model_of(run: Path, identity: dict[str, Any]) -> LoadedModel:
    """Load the model that a run was made with."""
    name = str(identity["name"])
    if identity.get("source") not in ("catalogue", "hub") or identity.get("adapters"):
        raise ModelError(
            f"{run} was made with {name!r}, a local model whose location it did not record, or one "
            "with adapters. Give the model itself instead of the run."
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
