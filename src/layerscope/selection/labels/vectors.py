"""The vectors of texts for every layer of a readout, from the store; what is not there yet is encoded first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerscope.capture import Site
from layerscope.core.readout import Readout, get_template, kinds_of
from layerscope.evaluation.encode import EncodePass, open_space, readout_vectors
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store.embeddings import EmbeddingStore, Space, text_key


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
    """One pass per template over the texts that the store lacks; the spaces by template, and what was done."""
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
    return {name: int(space.read_numbers(keys, "truncated").sum()) for name, space in spaces.items()}


@dataclass
class StoredVectors:
    """Vectors of texts under any readout: centred on these very texts where the readout says so, of length 1 where asked."""

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


def prepare(vectors: np.ndarray, centre: bool, unit: bool) -> np.ndarray:
    """Vectors (sites, texts, D) centred over the texts, then scaled to length 1, as asked; NaN where all are the same.

    The last token of a template is the same for every text at layer 0: nothing can be scored there.
    """
    mean = vectors.mean(1, keepdims=True, dtype=np.float64)
    same = np.abs(vectors - mean).max((1, 2)) <= 1e-6 * np.maximum(1e-30, np.abs(vectors).max((1, 2)))
    out = (vectors - mean).astype(np.float32) if centre else vectors.copy()
    if unit:
        out /= np.maximum(np.linalg.norm(out, axis=-1, keepdims=True), 1e-30)
    out[same] = np.nan
    return out
