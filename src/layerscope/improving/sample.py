"""Reading for an improvement: which texts, by which passes, how long that takes, and what the judge
says of the texts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.capture import Site, expand_sites
from layerscope.core.poolings import POOLINGS
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.templates import get_template
from layerscope.data.corpus import TextStream
from layerscope.data.sampling import distinct_texts, draw_texts
from layerscope.engines import Engine
from layerscope.engines.base import ModelRecipe
from layerscope.errors import DataError, LayerscopeError, NonFiniteStatesError
from layerscope.evaluation.encode import (
    EncodePass,
    TextEncoder,
    encode_by_workers,
    open_space,
    readout_vectors,
)
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.store.embeddings import EmbeddingStore, Space, text_key

LEAST_TEXTS = 20
MORE = 5
"""So many times the sample are drawn, for fitting on more texts than are judged."""
MOST = 50
"""The same where the time for reading further texts was given."""
_TRIAL = 8  # texts of the trial run that the estimate of the time rests on
_UNKNOWN = 0.1  # a judge that does not know more of the tokens than this does not know the language


@dataclass(frozen=True)
class Sample:
    """Distinct texts drawn at random; `total` is how many distinct ones there are.

    `more` are further ones, drawn likewise, for centering. What was drawn from is not held: `rest`
    reads it again.
    """

    texts: tuple[str, ...]
    total: int
    name: str
    facts: dict[str, Any]
    more: tuple[str, ...] = ()
    stream: Iterable[str] = ()
    keys: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64), repr=False)

    def rest(self, count: int) -> Iterator[str]:
        """`count` texts less those of the sample: drawn at random as long as there are such, else
        all, as they come."""
        if count <= len(self.texts) + len(self.more):
            return iter(self.more[: count - len(self.texts)])
        return distinct_texts(self.stream, self.keys, self.texts)


def draw_sample(
    texts: Any, *, column: str | None = None, encoding: str | None = None, size: int = 1000, more: int = MORE, seed: int = 0,
    offline: bool = False,
) -> Sample:  # fmt: skip
    """At most `size` distinct texts, at random; the draw depends on the seed and the texts, not on
    their order.

    Texts are read in a stream: a file of a million of them needs no more memory than one of a few
    thousand.
    """
    stream = TextStream(texts, column=column, offline=offline, encoding=encoding)
    drawn = draw_texts(stream, max(more, 1) * size, seed)
    if drawn.distinct < LEAST_TEXTS:
        same = (
            f" ({drawn.read} texts, of which {drawn.distinct} differ)"
            if drawn.distinct < drawn.read
            else ""
        )
        raise DataError(
            f"{stream.name} holds {drawn.distinct} different text{'s' if drawn.distinct > 1 else ''}{same}; at least "
            f"{LEAST_TEXTS} are needed to see which are neighbors, and some hundreds are better. To read a layer of your own "
            "choice, use `layerscope export`."
        )
    facts = {
        "name": stream.name,
        "read": drawn.read,
        "distinct": drawn.distinct,
        "dropped": stream.dropped,
        "source": stream.source,
    }
    facts["fingerprint"] = drawn.fingerprint
    return Sample(
        drawn.texts[:size],
        drawn.distinct,
        stream.name,
        facts,
        drawn.texts[size:],
        stream,
        drawn.keys,
    )


class Reader:
    """A model's passes over texts, into the store: one per template, all layers. Texts that are
    there are not read again."""

    def __init__(
        self, model: LoadedModel, store: EmbeddingStore, max_length: int, *, batch_size: int | None = None,
        engine: Engine | None = None, recipe: ModelRecipe | None = None,
    ) -> None:  # fmt: skip
        self.model, self.store, self.batch_size = model, store, batch_size
        self.max_length = (
            max_length if model.max_length is None else min(max_length, model.max_length)
        )
        self.engine, self.recipe = engine, recipe
        self.sites: list[Site] = expand_sites(None, model.anatomy)
        self.spaces: dict[str, Space] = {}

    @property
    def layers(self) -> list[int]:
        """All layers, the embeddings (0) first."""
        return [int(site.layer) for site in self.sites if site.layer is not None]

    def read(
        self, wanted: Mapping[str, Sequence[str]], texts: Sequence[str], bar: Progress, label: str
    ) -> int:
        """Read texts under templates, storing the kinds named for each; returns how many were not
        there yet."""
        passes = [self._pass(name, kinds) for name, kinds in wanted.items()]
        todo = [(one, one.missing(texts)) for one in passes]
        return self._run(todo, len(set(texts)) * len(passes), bar, f"{label}|readings")

    def _run(
        self, todo: Sequence[tuple[EncodePass, list[str]]], total: int, bar: Progress, label: str
    ) -> int:
        missing = sum(len(some) for _, some in todo)
        bar.begin(label, total, total - missing)
        if self.recipe is not None and self.engine is not None:
            encode_by_workers(self.engine, self.recipe, list(todo), bar.advance)
        else:
            for one, some in todo:
                one.run(some, bar.advance)
        return missing

    def vectors_at(
        self, readout: Readout, layer: int, texts: Sequence[str], bar: Progress, label: str
    ) -> np.ndarray:
        """The vectors (texts, D) of one layer, not centered; only the blocks below it are run."""
        one = self._pass(readout.template, readout.kinds, layer)
        self._run([(one, one.missing(texts))], len(set(texts)), bar, f"{label}|texts")
        return readout_vectors(
            one.space,
            [text_key(text) for text in texts],
            replace(readout, centering="none"),
            site_of(layer),
        )

    def _pass(self, name: str, kinds: Sequence[str], layer: int | None = None) -> EncodePass:
        template = get_template(name)
        self.spaces[name] = open_space(self.store, self.model, template, self.max_length)
        sites = [site for site in self.sites if layer is None or site.layer == layer]
        encoder = TextEncoder(self.model, template, sites, kinds, self.max_length, self.batch_size)
        return EncodePass(encoder, self.spaces[name])

    def tokens(self, names: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        """The mean tokens per text under each template."""
        return {
            name: float(np.mean([len(e.ids) for e in self._encoder(name, []).read(texts)]))
            for name in names
        }

    def computed_tokens(
        self, wanted: Mapping[str, Sequence[str]], texts: Sequence[str]
    ) -> dict[str, float]:
        """The same less those that all texts begin with, which are read once; `wanted` names the
        kinds to store."""
        encoders = {name: self._encoder(name, kinds) for name, kinds in wanted.items()}
        return {name: one.computed(one.read(texts)) / len(texts) for name, one in encoders.items()}

    def _encoder(self, name: str, kinds: Sequence[str]) -> TextEncoder:
        return TextEncoder(
            self.model, get_template(name), self.sites, kinds, self.max_length, self.batch_size
        )

    def check_differ(self, texts: Sequence[str]) -> None:
        """Refuse texts that are the same once they are cut: no readout could tell them apart."""
        encoder = self._encoder("plain", [])
        distinct = len({tuple(one.ids) for one in encoder.read(texts)})
        if distinct < LEAST_TEXTS:
            raise DataError(
                f"of {len(texts)} texts only {distinct} differ once they are cut to {self.max_length} tokens; at least "
                f"{LEAST_TEXTS} are needed to see which are neighbors. Raise max_length=, or give texts that begin differently."
            )

    def seconds_per_token(self, name: str, texts: Sequence[str]) -> float:
        """How fast the model reads under a template, here and now, from a short trial."""
        encoder = self._encoder(name, ["last/raw"])
        encoded = encoder.read(sorted(texts, key=len)[len(texts) // 2 :][:_TRIAL])
        encoder.run(encoded[:1], lambda n: None)  # the first batch pays for what is done once
        start = time.perf_counter()
        encoder.run(encoded, lambda n: None)
        return (time.perf_counter() - start) / encoder.computed(encoded)

    def truncated(self, name: str, texts: Sequence[str]) -> int:
        """How many texts were cut under a template."""
        return int(
            self.spaces[name].read_numbers([text_key(text) for text in texts], "truncated").sum()
        )


def encoder_vectors(
    judge: LoadedModel, store: EmbeddingStore, texts: Sequence[str], readout: Readout, bar: Progress
) -> np.ndarray:
    """The vectors (texts, D) of an encoder at its last layer."""
    last = [site for site in expand_sites(None, judge.anatomy) if site.layer == judge.n_blocks]
    template, length = get_template(readout.template), min(256, judge.max_length or 256)
    space = open_space(store, judge, template, length)
    one = EncodePass(TextEncoder(judge, template, last, readout.kinds, length), space)
    missing = one.missing(texts)
    bar.begin(f"{judge.name}, the judge|texts", len(set(texts)), len(set(texts)) - len(missing))
    other = "Give another sentence encoder (judge=), or judge without one: judge='none'."
    try:
        one.run(missing, bar.advance)
    except NonFiniteStatesError as error:
        told = str(error).partition(" for ")[0]
        raise LayerscopeError(
            f"the judge {judge.name} cannot be asked: {told}. Its weights may be damaged. {other}"
        ) from error
    vectors = readout_vectors(space, [text_key(text) for text in texts], readout, last[0].name)
    if np.ptp(vectors, axis=0).max() <= 1e-6 * np.abs(vectors).max():
        raise LayerscopeError(
            f"the judge {judge.name} cannot be asked: it gives all texts the same vector. {other}"
        )
    return vectors


def unknown_share(judge: LoadedModel, texts: Sequence[str]) -> float:
    """The share of a judge's tokens that stand for something it does not know."""
    unknown = getattr(judge.tokenizer, "unk_token_id", None)
    if unknown is None:
        return 0.0
    ids = [i for row in judge.tokenize(list(texts)).ids for i in row]
    return sum(i == unknown for i in ids) / max(1, len(ids))


def knows_language(judge: LoadedModel, texts: Sequence[str]) -> bool:
    """Whether a judge knows the words of the texts well enough to have an opinion."""
    return unknown_share(judge, texts) <= _UNKNOWN


def own_readout(folder: Path | None, width: int) -> Readout:
    """How a sentence encoder reads its texts itself, as its pooling module says; the mean where it
    does not say."""
    import json

    file = None if folder is None else folder / "1_Pooling" / "config.json"
    if file is None or not file.is_file():
        return Readout()
    told = json.loads(file.read_text(encoding="utf-8"))
    for name, pooling in reversed(
        POOLINGS.all().items()
    ):  # the mean last: some configs name it beside another
        mode = str(pooling.sentence_transformers)
        if told.get(f"pooling_mode_{mode}") or told.get("pooling_mode") == mode.removesuffix(
            "_token"
        ).removesuffix("_tokens"):
            return Readout(pooling=name)
    return Readout()
