"""The readouts that are worth trying, and their vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import HEAD, Readout, kinds_of
from layerscope.core.sites import site_of
from layerscope.core.templates import get_template, names_of
from layerscope.errors import LayerscopeError
from layerscope.improving.heads import Heads
from layerscope.selection.judges.base import TEXTS
from layerscope.vectors import VectorSpace, text_key
from layerscope.vectors.encode import read_readout


def offered(templates: Sequence[str] | None, labels: bool = False) -> list[str]:
    """The templates to try. Labels can tell more templates apart than an encoder can, so that with
    labels all are tried."""
    names = (
        list(templates) if templates is not None else names_of("with_labels" if labels else "tried")
    )
    return list(dict.fromkeys(["plain", *names]))


def search_templates(templates: Sequence[str] | None) -> list[str]:
    """The templates to try for a search, of queries and documents; those that end alike can be read
    together."""
    return list(
        dict.fromkeys(["plain", *(names_of("searched") if templates is None else templates)])
    )


def make_grid(templates: Sequence[str], *, has_cls: bool, has_norm: bool) -> list[Readout]:
    """Readouts of these templates that standard sentence-transformers modules can express, the
    default one first.

    Centering is tried both ways; dropping the sink token and repeating the text need code of their
    own and are left out.
    """
    found = [Readout()]
    norms = ("applied", "raw") if has_norm else ("applied",)
    for name in templates:
        template = get_template(name)
        if template.copies > 1:
            raise LayerscopeError(
                f"template {name!r} holds the text {template.copies} times, which a standard folder cannot express. "
                "Leave it out of templates=, or compare it with `layerscope evaluate`."
            )
        for pooling in map(POOLINGS.get, template.poolings):
            if (
                not pooling.tried
                or (pooling.needs_cls and not has_cls)
                or not pooling.sentence_transformers
            ):
                continue
            found += [
                Readout(name, pooling.name, norm, "keep", centering)
                for norm in norms
                for centering in ("none", "corpus")
            ]
    return list(dict.fromkeys(found))


def by_template(readouts: Sequence[Readout]) -> dict[str, list[str]]:
    """The kinds of vectors to store, by the template whose pass yields them."""
    grouped: dict[str, list[Readout]] = {}
    for readout in readouts:
        grouped.setdefault(readout.template, []).append(readout)
    return {name: kinds_of(group) for name, group in grouped.items()}


@dataclass
class StoredCandidates:
    """Candidates whose vectors are in the store: `views` are texts by the name of the view, of
    equal number.

    Centering subtracts the mean over the texts themselves, for their parts as well, as the exported
    model will. Where `heads` are given, a head's vectors of the texts come from heads that were not
    fitted on them.
    """

    spaces: Mapping[str, VectorSpace]
    readouts: Sequence[Readout]
    layers: Sequence[int]
    views: Mapping[str, Sequence[str]]
    heads: Heads | None = None
    advance: Callable[[int], None] = lambda n: None
    _asked: set[Readout] = field(default_factory=set, repr=False)
    _last: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._keys = {
            view: [text_key(text) for text in texts] for view, texts in self.views.items()
        }

    def only(self, readouts: Sequence[Readout]) -> StoredCandidates:
        """The same with fewer readouts."""
        return StoredCandidates(self.spaces, readouts, self.layers, self.views, self.heads)

    def finish(self) -> None:
        """Count the readouts that were not asked for: the judge knew them from others."""
        self.advance(len(self.readouts) - len(self._asked))

    def vectors(self, readout: Readout, view: str = TEXTS) -> np.ndarray:
        """(layers, texts, D); NaN throughout at a layer where all texts have the same vector."""
        if (
            readout in self.readouts and readout not in self._asked
        ):  # progress: judges ask for one readout after the other
            self._asked.add(readout)
            self.advance(1)
        if readout.centering == HEAD:
            assert self.heads is not None, "a head is fitted before it is asked for"
            if view == TEXTS:
                return self.heads.crossed
            found = self.heads.apply(self._raw(readout, view))
            at = {key: i for i, key in enumerate(self._keys[TEXTS])}
            for i, key in enumerate(
                self._keys[view]
            ):  # of texts that heads were fitted on, what is said without them
                if key in at:
                    found[:, i] = self.heads.crossed[:, at[key]]
            return found
        found = self._raw(readout, view)
        whole = found if view == TEXTS else self._raw(readout, TEXTS)
        mean = whole.mean(1, keepdims=True, dtype=np.float64).astype(np.float32)
        same = np.abs(whole - mean).max((1, 2)) <= 1e-6 * np.maximum(
            1e-30, np.abs(whole).max((1, 2))
        )
        out = found - mean if readout.centering == "corpus" else found.copy()
        out[same] = np.nan
        return out

    def raw(self, readout: Readout, layer: int) -> np.ndarray:
        """The texts' vectors (texts, D) at a layer, not centered."""
        return self._raw(readout, TEXTS)[list(self.layers).index(layer)]

    def mean(self, readout: Readout, layer: int) -> np.ndarray:
        """Their mean (D,), in double precision."""
        return self.raw(readout, layer).mean(0, dtype=np.float64)

    def _raw(self, readout: Readout, view: str) -> np.ndarray:
        key = (readout.template, *readout.kinds, view)
        if key not in self._last:
            while (
                len(self._last) > 3
            ):  # the four views of one readout; reading is cheap, memory is not
                del self._last[next(iter(self._last))]
            space, keys = self.spaces[readout.template], self._keys[view]
            self._last[key] = np.stack(
                [read_readout(space, keys, readout, site_of(layer)) for layer in self.layers]
            )
        return self._last[key]
