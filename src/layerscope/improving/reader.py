"""The texts that an improvement is judged on, and reading them with a model.

Texts are read through the store at all layers, or directly at the chosen one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Self

import numpy as np

from layerscope.capture import expand_sites
from layerscope.core.heads import Head
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.templates import get_template
from layerscope.data.corpus import TextStream, draw_texts
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import DataError
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, make_requests, open_space, read_readout
from layerscope.vectors.encoder import EncodeRequest, TextEncoder

LEAST_TEXTS = 20
MOST_FITTED = 50_000
"""The most texts that are fitted on: their vectors are held in memory, and more add little."""


@dataclass(frozen=True)
class Sample:
    """Distinct texts drawn at random, `total` of them in all; `more` were drawn likewise, for a fit.

    `facts` are for the manifest.
    """

    texts: tuple[str, ...]
    total: int
    name: str
    facts: dict[str, Any]
    more: tuple[str, ...] = ()

    def rest(self, count: int) -> tuple[str, ...]:
        """Return further texts, `count` with those of the sample."""
        return self.more[: count - len(self.texts)]


def draw_sample(
    texts: Any,
    *,
    column: str | None = None,
    encoding: str | None = None,
    size: int = 1000,
    more: int = 0,
    seed: int = 0,
) -> Sample:
    """Draw at most `size` distinct texts, and `more` for a fit.

    The draw depends on the seed and on which texts there are. Texts are read in a stream, so that a
    file of millions needs little memory.
    """
    stream = TextStream(texts, column=column, encoding=encoding)
    drawn = draw_texts(stream, size + more, seed)
    if drawn.distinct < LEAST_TEXTS:
        plural = "s" if drawn.distinct > 1 else ""
        copies = ""
        if drawn.distinct < drawn.read:
            copies = f" ({drawn.read} texts, of which {drawn.distinct} differ)"
        raise DataError(
            f"{stream.name} holds {drawn.distinct} different text{plural}{copies}; at least "
            f"{LEAST_TEXTS} are needed to see which are neighbors, and some hundreds are better. "
            "To read a layer of your own choice, use `layerscope export`."
        )
    facts = {
        "name": stream.name,
        "read": drawn.read,
        "distinct": drawn.distinct,
        "dropped": stream.dropped,
        "source": stream.source,
        "fingerprint": drawn.fingerprint,
    }
    further = drawn.texts[size:]
    return Sample(drawn.texts[:size], drawn.distinct, stream.name, facts, further)


TIMED = 12
_ROUNDS = 2

Encode = Callable[[Sequence[str]], Any]


class Reader:
    """A model with a store of vectors. Texts whose vectors are in the store are not read again."""

    def __init__(
        self,
        model: LoadedModel,
        store: VectorStore,
        max_length: int,
        *,
        batch_size: int | None = None,
        engine: Engine | None = None,
        recipe: ModelRecipe | None = None,
    ) -> None:
        self.model = model
        self.store = store
        self.batch_size = batch_size
        self.max_length = min(max_length, model.max_length or max_length)
        self.engine = engine
        self.recipe = recipe
        self.sites = expand_sites(None, model.anatomy)

    @property
    def layers(self) -> list[int]:
        """Return all layers, the embeddings (0) first."""
        return list(range(self.model.n_blocks + 1))

    def read(
        self,
        readouts: Sequence[Readout],
        texts: Sequence[str],
        bar: Progress,
        label: str,
        layer: int | None = None,
    ) -> None:
        """Encode what the store lacks, at one layer or all; only the blocks below are run."""
        sites = [site for site in self.sites if layer is None or site.layer == layer]
        requests = make_requests(readouts, sites, self.max_length, self.batch_size)
        missing = find_missing(self.model, self.store, requests, texts)
        total = len(set(texts)) * len(requests)
        count = sum(len(batch.texts) for batch in missing)
        bar.begin(label, total, total - count)
        encode(self.model, missing, engine=self.engine, recipe=self.recipe, advance=bar.advance)

    def stored(self, readout: Readout, layer: int, texts: Sequence[str]) -> np.ndarray:
        """Return stored vectors (texts, D) of a layer, not centered."""
        keys = [text_key(text) for text in texts]
        plain = replace(readout, centering="none")
        return read_readout(self._space(readout.template), keys, plain, site_of(layer))

    def vectors(
        self, readout: Readout, layer: int, texts: Sequence[str], bar: Progress, label: str
    ) -> np.ndarray:
        """Read texts at one layer, and return their vectors (texts, D), not centered."""
        self.read([readout], texts, bar, f"{label}|texts", layer)
        return self.stored(readout, layer, texts)

    def encoder(self, readout: Readout, layer: int) -> TextEncoder:
        """Return an encoder of texts at one layer, which does not use the store."""
        sites = tuple(site for site in self.sites if site.layer == layer)
        template = get_template(readout.template)
        return TextEncoder(
            self.model,
            EncodeRequest(template, sites, readout.kinds, self.max_length, self.batch_size),
        )

    def tokens(self, templates: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        """Return the mean tokens per text under each template."""
        means = {}
        for name in templates:
            tokenized = self.encoder(Readout(name), 0).tokenize(texts)
            means[name] = float(np.mean([len(text.ids) for text in tokenized]))
        return means

    def truncated(self, template: str, texts: Sequence[str]) -> int:
        """Return how many of the texts that were read under a template were cut."""
        keys = [text_key(text) for text in texts]
        return int(self._space(template).read_numbers(keys, "truncated").sum())

    def check_differ(self, texts: Sequence[str]) -> None:
        """Refuse texts that are the same once they are cut: no readout could tell them apart."""
        tokenized = self.encoder(Readout(), 0).tokenize(texts)
        distinct = len({tuple(text.ids) for text in tokenized})
        if distinct < LEAST_TEXTS:
            raise DataError(
                f"of {len(texts)} texts only {distinct} differ once they are cut to "
                f"{self.max_length} tokens; at least {LEAST_TEXTS} are needed to see which are "
                "neighbors. Raise max_length=, or give texts that begin differently."
            )

    def _space(self, template: str) -> VectorSpace:
        return open_space(self.store, self.model, get_template(template), self.max_length)


@dataclass(frozen=True)
class Fitted:
    """A mean to subtract or a head to apply, fitted on `texts` of the `total` distinct texts."""

    head: Head
    texts: int
    total: int

    @classmethod
    def of(cls, sample: Sample, texts: int, head: Head) -> Self:
        """Record in words which texts of a sample a head was fitted on."""
        words = f"all {texts:,} texts"
        if texts != sample.total:
            words = f"{texts:,} of {sample.total:,} texts (drawn at random)"
        return cls(replace(head, fitted_on=f"{words} of {sample.name}"), texts, sample.total)


@dataclass(frozen=True)
class Chosen:
    """A layer of a model under a readout, with the mean or the head that was fitted for it.

    `query` says how queries are read, where that differs. `formats` are written beside the folder.
    """

    reader: Reader
    readout: Readout
    layer: int
    fitted: Fitted | None = None
    query: Chosen | None = None
    formats: tuple[str, ...] = ()

    @property
    def model(self) -> LoadedModel:
        """Return the model that is read."""
        return self.reader.model

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors (texts, D) by the model that is in memory; not scaled."""
        encoded = self.reader.encoder(self.readout, self.layer).encode(texts)
        return self.transform(encoded.vectors[self.readout.kinds[0]][0])

    def transform(self, pooled: np.ndarray) -> np.ndarray:
        """Return pooled vectors after the mean is subtracted, or through the head."""
        return pooled if self.fitted is None else self.fitted.head(pooled).astype(np.float32)


def texts_per_second(encoders: Mapping[str, Encode], texts: Sequence[str]) -> dict[str, float]:
    """Return how many texts each encodes in a second.

    They are timed in turns, because other work on the machine then slows all of them alike.
    """
    seconds = dict.fromkeys(encoders, 0.0)
    for encode_texts in encoders.values():
        encode_texts(texts[:2])  # pays for what is done once
    for _ in range(_ROUNDS):
        for name, encode_texts in encoders.items():
            start = perf_counter()
            encode_texts(texts)
            seconds[name] += perf_counter() - start
    return {name: _ROUNDS * len(texts) / max(total, 1e-9) for name, total in seconds.items()}
