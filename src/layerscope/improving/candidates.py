"""The candidates: readouts that are worth trying at every layer, and their stored vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from layerscope.choose.judges.agreement import similarities
from layerscope.choose.judges.base import TEXTS
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import HEAD, Readout
from layerscope.core.templates import get_template, names_of
from layerscope.errors import ExportError, LayerscopeError
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import facts_of, plan_formats
from layerscope.improving.heads import Heads
from layerscope.improving.reader import Reader
from layerscope.models import LoadedModel


def template_names(
    templates: Sequence[str] | None, *, labels: bool = False, search: bool = False
) -> list[str]:
    """Return the templates to try. Labels can tell more templates apart than an encoder can."""
    default = "searched" if search else "with_labels" if labels else "tried"
    names = names_of(default) if templates is None else templates
    return list(dict.fromkeys(["plain", *names]))


def make_grid(templates: Sequence[str], *, has_cls: bool, has_norm: bool) -> list[Readout]:
    """Return the readouts of templates that standard modules can express, the default first.

    Dropping the sink token and repeating the text need code of their own, and are left out.
    """
    grid = [Readout()]
    norms = ("applied", "raw") if has_norm else ("applied",)
    for name in templates:
        template = get_template(name)
        if template.copies > 1:
            raise LayerscopeError(
                f"template {name!r} holds the text {template.copies} times, which a standard folder"
                " cannot express. Leave it out of templates=, or compare it with `layerscope "
                "evaluate`."
            )
        for pooling in map(POOLINGS.get, template.poolings):
            if not pooling.tried or not pooling.sentence_transformers:
                continue
            if pooling.needs_cls and not has_cls:
                continue
            for norm in norms:
                for centering in ("none", "corpus"):
                    grid.append(Readout(name, pooling.name, norm, "keep", centering))
    return list(dict.fromkeys(grid))


def server_needs(
    model: LoadedModel, readout: Readout, servers: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return what keeps servers from opening a readout, and the formats that they need."""
    return plan_formats(facts_of(model, readout), servers) if servers else ([], [])


def servable_grid(
    model: LoadedModel, templates: Sequence[str], servers: Sequence[str]
) -> list[Readout]:
    """Return the readouts that the servers open; raise where there is none."""
    has_norm = model.anatomy.final_norm is not None
    grid = make_grid(templates, has_cls=model.has_class_token, has_norm=has_norm)
    problems, formats = server_needs(model, grid[0], servers)
    for name in formats:
        FORMATS.get(name).check()
        FORMATS.get(name).check_choice(model, model.n_blocks, grid[0])
    if problems:
        raise LayerscopeError(f"no readout of {model.name} opens there: {'; '.join(problems)}.")
    return [readout for readout in grid if not server_needs(model, readout, servers)[0]]


def exportable(
    model: LoadedModel, readouts: Sequence[Readout], layers: Sequence[int], servers: Sequence[str]
) -> np.ndarray:
    """Return the places (readouts, layers) of which the servers' formats can be written."""
    allowed = np.full((len(readouts), len(layers)), True)
    for row, readout in enumerate(readouts):
        for name in server_needs(model, readout, servers)[1]:
            for column, layer in enumerate(layers):
                try:
                    FORMATS.get(name).check_choice(model, layer, readout)
                except ExportError:
                    allowed[row, column] = False
    return allowed


@dataclass(frozen=True)
class StoredCandidates:
    """Readouts at every layer whose vectors are in the store of a reader.

    `views` are texts by the name of the view. Centering subtracts the mean over the texts
    themselves, for their parts as well, as the exported model will. With `heads`, a head's vectors
    of the texts come from heads that were not fitted on them.
    """

    reader: Reader
    readouts: Sequence[Readout]
    views: Mapping[str, Sequence[str]]
    heads: Heads | None = None
    _recent: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def layers(self) -> list[int]:
        """Return all layers."""
        return self.reader.layers

    @property
    def texts(self) -> Sequence[str]:
        """Return the texts that are judged on."""
        return self.views[TEXTS]

    def only(self, readouts: Sequence[Readout], heads: Heads | None) -> StoredCandidates:
        """Return the candidates of other readouts on the same texts."""
        return replace(self, readouts=readouts, heads=heads)

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
        """Return vectors (layers, texts, D); NaN at a layer where all texts have the same one."""
        if readout.centering == HEAD:
            return self._mapped(view)
        return np.stack([self._prepared(readout, view, layer) for layer in self.layers])

    def similarity(self, readout: Readout, layer: int) -> Tensor | None:
        """Return the cosines (texts, texts) at a layer; None where they are undefined.

        Those of a head are from heads that were fitted on neither text.
        """
        if readout.centering == HEAD:
            assert self.heads is not None
            cosines = self.heads.similarities(layer)
            return None if cosines is None else torch.as_tensor(cosines)
        vectors = self._prepared(readout, TEXTS, layer)
        return similarities(vectors) if np.isfinite(vectors).all() else None

    def raw(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
        """Return vectors (layers, texts, D), not centered."""
        key = (readout.template, *readout.kinds, view)
        if key not in self._recent:
            if len(self._recent) > 3:  # the four views of one readout: more take too much memory
                del self._recent[next(iter(self._recent))]
            texts = self.views[view]
            self._recent[key] = np.stack(
                [self.reader.stored(readout, layer, texts) for layer in self.layers]
            )
        return self._recent[key]

    def mean(self, readout: Readout, layer: int) -> np.ndarray:
        """Return the mean (D,) of the texts' vectors at a layer, in double precision."""
        return self.raw(readout)[layer].mean(0, dtype=np.float64)

    def _prepared(self, readout: Readout, view: str, layer: int) -> np.ndarray:
        """Return vectors (texts, D) at a layer, centered if the readout centers."""
        vectors = self.raw(readout, view)[layer]
        texts = self.raw(readout)[layer]
        mean = texts.mean(0, dtype=np.float64).astype(np.float32)
        if np.abs(texts - mean).max() <= 1e-6 * max(1e-30, np.abs(texts).max()):
            return np.full_like(vectors, np.nan)
        return vectors - mean if readout.centering == "corpus" else vectors

    def _mapped(self, view: str) -> np.ndarray:
        """Return vectors through the heads; of texts that they were fitted on, through others."""
        assert self.heads is not None
        if view == TEXTS:
            return self.heads.crossed
        vectors = self.heads.apply(self.raw(Readout(), view))
        places = {text: i for i, text in enumerate(self.texts)}
        for i, text in enumerate(self.views[view]):
            if text in places:
                vectors[:, i] = self.heads.crossed[:, places[text]]
        return vectors
