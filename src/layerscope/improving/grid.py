"""The readouts that are worth trying, what each costs per text, and their vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import Readout, kinds_of
from layerscope.core.sites import site_of
from layerscope.core.templates import BLEND, get_template, names_of
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.evaluation.encode import readout_vectors
from layerscope.selection.judges.base import TEXTS
from layerscope.store.embeddings import Space, text_key


def passes_of(readout: Readout, prompts: Sequence[str]) -> int:
    """How often the model runs per text: the cost of a readout."""
    return len(prompts) if readout.template == BLEND else 1


def offered(templates: Sequence[str] | None, max_cost: float = 1, labels: bool = False) -> tuple[list[str], list[str]]:
    """The templates to try one by one, and the prompts whose mean is offered; none where one pass is all that a text may cost.

    Labels can tell more templates apart than an encoder can, so that with labels all are tried.
    """
    if max_cost < 1:
        raise InvalidValueError(f"a text costs one pass at least: max_cost= is 1 or more, not {max_cost:g}.")
    names = list(templates) if templates is not None else names_of("blended" if labels else "tried")
    prompts = names_of("blended") if templates is None else prompts_among(names)
    prompts = prompts[: int(max_cost)]
    return list(dict.fromkeys(["plain", *names])), prompts if len(prompts) > 1 else []


def make_grid(
    templates: Sequence[str], *, has_cls: bool, has_norm: bool, blended: Sequence[str] = (), exportable: bool = True
) -> list[Readout]:
    """Readouts of these templates that standard sentence-transformers modules can express, the default one first.

    Centering is tried both ways; dropping the sink token and repeating the text need code of their own and are left out unless
    `exportable` is off. Where prompts are `blended`, their mean is offered as well.
    """
    found = [Readout()]
    norms = ("applied", "raw") if has_norm else ("applied",)
    for name in templates:
        template = get_template(name)
        if template.copies > 1 and exportable:
            raise LayerscopeError(
                f"template {name!r} holds the text {template.copies} times, which a standard folder cannot express. "
                "Leave it out of templates=, or compare it with `layerscope evaluate`."
            )
        for pooling in map(POOLINGS.get, template.poolings):
            if not pooling.tried or (pooling.needs_cls and not has_cls) or (exportable and not pooling.sentence_transformers):
                continue
            found += [Readout(name, pooling.name, norm, "keep", centering) for norm in norms for centering in ("none", "corpus")]
    if blended:
        found += [Readout(BLEND, "last", norm, "keep", "corpus") for norm in norms]
    return list(dict.fromkeys(found))


def prompts_among(templates: Sequence[str]) -> list[str]:
    """Those of the templates that a blend averages."""
    return [name for name in templates if get_template(name).blended]


def by_template(readouts: Sequence[Readout], prompts: Sequence[str]) -> dict[str, list[str]]:
    """The kinds of vectors to store, by the template whose pass yields them."""
    grouped: dict[str, list[Readout]] = {}
    for readout in readouts:
        for name in prompts if readout.template == BLEND else [readout.template]:
            grouped.setdefault(name, []).append(replace(readout, template=name))
    return {name: kinds_of(group) for name, group in grouped.items()}


@dataclass
class StoredCandidates:
    """Candidates whose vectors are in the store: `views` are texts by the name of the view, of equal number.

    Centering subtracts the mean over the texts themselves, for their parts as well, as the exported model will.
    """

    spaces: Mapping[str, Space]
    readouts: Sequence[Readout]
    layers: Sequence[int]
    views: Mapping[str, Sequence[str]]
    prompts: Sequence[str] = ()
    advance: Callable[[int], None] = lambda n: None
    _asked: set[Readout] = field(default_factory=set, repr=False)
    _last: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._keys = {view: [text_key(text) for text in texts] for view, texts in self.views.items()}

    def only(self, readouts: Sequence[Readout]) -> StoredCandidates:
        """The same with fewer readouts."""
        return StoredCandidates(self.spaces, readouts, self.layers, self.views, self.prompts)

    def finish(self) -> None:
        """Count the readouts that were not asked for: the judge knew them from others."""
        self.advance(len(self.readouts) - len(self._asked))

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
        """(layers, texts, D); NaN throughout at a layer where all texts have the same vector."""
        if readout in self.readouts and readout not in self._asked:  # progress: judges ask for one readout after the other
            self._asked.add(readout)
            self.advance(1)
        if readout.template == BLEND:
            parts = [unit(self.vectors(replace(readout, template=name), view)) for name in self.prompts]
            return np.asarray(np.mean(parts, axis=0), dtype=np.float32)
        found = self._raw(readout, view)
        whole = found if view == TEXTS else self._raw(readout, TEXTS)
        mean = whole.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
        same = np.abs(whole - mean).max((1, 2)) <= 1e-6 * np.maximum(1e-30, np.abs(whole).max((1, 2)))
        out = found - mean if readout.centering == "corpus" else found.copy()
        out[same] = np.nan
        return out

    def raw(self, readout: Readout, layer: int) -> np.ndarray:
        """The texts' vectors (texts, D) at a layer, not centered; not of a blend."""
        return self._raw(readout, TEXTS)[list(self.layers).index(layer)]

    def mean(self, readout: Readout, layer: int) -> np.ndarray:
        """Their mean (D,), in double precision."""
        return self.raw(readout, layer).mean(0, dtype=np.float64)

    def _raw(self, readout: Readout, view: str) -> np.ndarray:
        key = (readout.template, *readout.kinds, view)
        if key not in self._last:
            while len(self._last) > 3:  # the four views of one readout; reading is cheap, memory is not
                del self._last[next(iter(self._last))]
            space, keys = self.spaces[readout.template], self._keys[view]
            self._last[key] = np.stack([readout_vectors(space, keys, readout, site_of(layer)) for layer in self.layers])
        return self._last[key]


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30)
