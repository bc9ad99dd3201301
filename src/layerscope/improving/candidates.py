"""The candidates: readouts that are worth trying at every layer, and their stored vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from layerscope.choose.judges.agreement import similarities
from layerscope.choose.judges.base import TEXTS
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import HEAD, Readout, kinds_of
from layerscope.core.sites import site_of
from layerscope.core.templates import get_template, names_of
from layerscope.errors import ExportError, LayerscopeError
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import facts_of, plan_formats
from layerscope.improving.heads import Heads
from layerscope.models import LoadedModel
from layerscope.vectors import VectorSpace, text_key
from layerscope.vectors.encode import read_readout


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
            grid += [
                Readout(name, pooling.name, norm, "keep", centering)
                for norm in norms
                for centering in ("none", "corpus")
            ]
    return list(dict.fromkeys(grid))


def by_template(readouts: Sequence[Readout]) -> dict[str, list[str]]:
    """Return the kinds of vectors to store, by the template whose pass yields them."""
    groups: dict[str, list[Readout]] = {}
    for readout in readouts:
        groups.setdefault(readout.template, []).append(readout)
    return {name: kinds_of(group) for name, group in groups.items()}


def server_needs(
    model: LoadedModel, readout: Readout, servers: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return what keeps servers from opening a readout, and the formats that they need."""
    if not servers:
        return [], []
    return plan_formats(facts_of(model, readout), servers)


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


def find_readout(readouts: Sequence[Readout], name: str | None) -> Readout:
    """Return the readout of a name; parsing the name would strip a pattern of the user's own."""
    return next(readout for readout in readouts if readout.name == name)


@dataclass
class StoredCandidates:
    """Candidates whose vectors are in the store.

    `views` are texts by the name of the view. Centering subtracts the mean over the texts
    themselves, for their parts as well, as the exported model will. Where `heads` are given, a
    head's vectors of the texts come from heads that were not fitted on them.
    """

    spaces: Mapping[str, VectorSpace]
    readouts: Sequence[Readout]
    layers: Sequence[int]
    views: Mapping[str, Sequence[str]]
    heads: Heads | None = None
    advance: Callable[[int], None] = lambda n: None
    _counted: set[Readout] = field(default_factory=set, repr=False)
    _recent: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def texts(self) -> Sequence[str]:
        """Return the texts that are judged on."""
        return self.views[TEXTS]

    def only(self, readouts: Sequence[Readout], heads: Heads | None = None) -> StoredCandidates:
        """Return the candidates of some readouts, with heads if there are any."""
        return StoredCandidates(
            self.spaces, readouts, self.layers, self.views, heads or self.heads, self.advance
        )

    def watched(self, advance: Callable[[int], None]) -> StoredCandidates:
        """Return the candidates with a callback that counts the readouts as they are read."""
        return replace(self, advance=advance, _counted=set())

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
        """Return vectors (layers, texts, D); NaN at a layer where all texts have the same one."""
        self._count(readout)
        if readout.centering == HEAD:
            return self._mapped(readout, view)
        return np.stack([self._prepared(readout, view, i) for i in range(len(self.layers))])

    def similarity(self, readout: Readout, place: int) -> Tensor | None:
        """Return the cosines (texts, texts) at one of the layers; None where they are undefined.

        Those of a head are from heads that were fitted on neither text.
        """
        self._count(readout)
        if readout.centering == HEAD:
            assert self.heads is not None
            cosines = self.heads.similarities(place)
            return None if cosines is None else torch.as_tensor(cosines)
        vectors = self._prepared(readout, TEXTS, place)
        return similarities(vectors) if np.isfinite(vectors).all() else None

    def raw(self, readout: Readout, layer: int) -> np.ndarray:
        """Return the texts' vectors (texts, D) at a layer, not centered."""
        return self._raw(readout, TEXTS)[list(self.layers).index(layer)]

    def mean(self, readout: Readout, layer: int) -> np.ndarray:
        """Return the mean (D,) of the texts' vectors at a layer, in double precision."""
        return self.raw(readout, layer).mean(0, dtype=np.float64)

    def _count(self, readout: Readout) -> None:
        if readout in self.readouts and readout not in self._counted:
            self._counted.add(readout)
            self.advance(1)

    def _prepared(self, readout: Readout, view: str, place: int) -> np.ndarray:
        """Return vectors (texts, D) at one of the layers, centered if the readout centers."""
        vectors = self._raw(readout, view)[place]
        whole = self._raw(readout, TEXTS)[place]
        mean = whole.mean(0, dtype=np.float64).astype(np.float32)
        if np.abs(whole - mean).max() <= 1e-6 * max(1e-30, np.abs(whole).max()):
            return np.full_like(vectors, np.nan)
        return vectors - mean if readout.centering == "corpus" else vectors

    def _mapped(self, readout: Readout, view: str) -> np.ndarray:
        """Return vectors through the heads; of texts that they were fitted on, through others."""
        assert self.heads is not None
        if view == TEXTS:
            return self.heads.crossed
        vectors = self.heads.apply(self._raw(readout, view))
        places = {text: i for i, text in enumerate(self.texts)}
        for i, text in enumerate(self.views[view]):
            if text in places:
                vectors[:, i] = self.heads.crossed[:, places[text]]
        return vectors

    def _raw(self, readout: Readout, view: str) -> np.ndarray:
        key = (readout.template, *readout.kinds, view)
        if key not in self._recent:
            while len(self._recent) > 3:  # the four views of one readout: memory is not cheap
                del self._recent[next(iter(self._recent))]
            space = self.spaces[readout.template]
            keys = [text_key(text) for text in self.views[view]]
            layers = [read_readout(space, keys, readout, site_of(k)) for k in self.layers]
            self._recent[key] = np.stack(layers)
        return self._recent[key]
