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
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import DataError, LayerscopeError, NonFiniteStatesError
from layerscope.models import LoadedModel
from layerscope.progress import Progress
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, read_readout
from layerscope.vectors.encoder import EncodeRequest, TextEncoder

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
) -> Sample:  # fmt: skip
    """At most `size` distinct texts, at random; the draw depends on the seed and the texts, not on
    their order.

    Texts are read in a stream: a file of a million of them needs no more memory than one of a few
    thousand.
    """
    stream = TextStream(texts, column=column, encoding=encoding)
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
        self.sites: list[Site] = expand_sites(None, model.anatomy)
        self.spaces: dict[str, VectorSpace] = {}

    @property
    def layers(self) -> list[int]:
        """All layers, the embeddings (0) first."""
        return [int(site.layer) for site in self.sites if site.layer is not None]

    def request(
        self, template: str, readings: Sequence[str], layer: int | None = None
    ) -> EncodeRequest:
        """Return the request for readings under a template, at one layer or all."""
        sites = tuple(site for site in self.sites if layer is None or site.layer == layer)
        return EncodeRequest(
            get_template(template), sites, tuple(readings), self.max_length, self.batch_size
        )

    def read(
        self, wanted: Mapping[str, Sequence[str]], texts: Sequence[str], bar: Progress, label: str
    ) -> int:
        """Encode texts under templates, for the readings named for each; return how many were
        missing."""
        requests = [self.request(name, readings) for name, readings in wanted.items()]
        return self._encode(requests, texts, bar, f"{label}|readings")

    def _encode(
        self, requests: Sequence[EncodeRequest], texts: Sequence[str], bar: Progress, label: str
    ) -> int:
        missing = find_missing(self.model, self.store, requests, texts)
        for part in missing:
            self.spaces[part.request.template.name] = part.space
        count = sum(len(part.texts) for part in missing)
        total = len(set(texts)) * len(requests)
        bar.begin(label, total, total - count)
        encode(self.model, missing, engine=self.engine, recipe=self.recipe, advance=bar.advance)
        return count

    def vectors_at(
        self, readout: Readout, layer: int, texts: Sequence[str], bar: Progress, label: str
    ) -> np.ndarray:
        """Return the vectors (texts, D) of one layer, not centered; only the blocks below it are
        run."""
        request = self.request(readout.template, readout.kinds, layer)
        self._encode([request], texts, bar, f"{label}|texts")
        return read_readout(
            self.spaces[readout.template],
            [text_key(text) for text in texts],
            replace(readout, centering="none"),
            site_of(layer),
        )

    def encoder(self, template: str, readings: Sequence[str] = ()) -> TextEncoder:
        """Return what encodes texts under a template without the store."""
        return TextEncoder(self.model, self.request(template, readings))

    def tokens(self, names: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
        """Return the mean tokens per text under each template."""
        return {
            name: float(np.mean([len(text.ids) for text in self.encoder(name).tokenize(texts)]))
            for name in names
        }

    def computed_tokens(
        self, wanted: Mapping[str, Sequence[str]], texts: Sequence[str]
    ) -> dict[str, float]:
        """Return the same less those that all texts begin with, which are read once; `wanted`
        names the readings to store."""
        encoders = {name: self.encoder(name, readings) for name, readings in wanted.items()}
        return {
            name: encoder.computed_tokens(encoder.tokenize(texts)) / len(texts)
            for name, encoder in encoders.items()
        }

    def check_differ(self, texts: Sequence[str]) -> None:
        """Refuse texts that are the same once they are cut: no readout could tell them apart."""
        tokenized = self.encoder("plain").tokenize(texts)
        distinct = len({tuple(text.ids) for text in tokenized})
        if distinct < LEAST_TEXTS:
            raise DataError(
                f"of {len(texts)} texts only {distinct} differ once they are cut to "
                f"{self.max_length} tokens; at least {LEAST_TEXTS} are needed to see which are "
                "neighbors. Raise max_length=, or give texts that begin differently."
            )

    def seconds_per_token(self, name: str, texts: Sequence[str]) -> float:
        """Return how fast the model reads under a template, here and now, from a short trial."""
        encoder = self.encoder(name, ["last/raw"])
        tokenized = encoder.tokenize(sorted(texts, key=len)[len(texts) // 2 :][:_TRIAL])
        encoder.run(tokenized[:1])  # the first batch pays for what is done once
        start = time.perf_counter()
        encoder.run(tokenized)
        return (time.perf_counter() - start) / encoder.computed_tokens(tokenized)

    def truncated(self, name: str, texts: Sequence[str]) -> int:
        """Return how many texts were cut under a template."""
        keys = [text_key(text) for text in texts]
        return int(self.spaces[name].read_numbers(keys, "truncated").sum())


def encoder_vectors(
    judge: LoadedModel, store: VectorStore, texts: Sequence[str], readout: Readout, bar: Progress
) -> np.ndarray:
    """Return the vectors (texts, D) of an encoder at its last layer."""
    request = last_layer(judge, readout)
    [missing] = find_missing(judge, store, [request], texts)
    total = len(set(texts))
    bar.begin(f"{judge.name}, the judge|texts", total, total - len(missing.texts))
    advice = "Give another sentence encoder (judge=), or judge without one: judge='none'."
    try:
        encode(judge, [missing], advance=bar.advance)
    except NonFiniteStatesError as error:
        problem = str(error).partition(" for ")[0]
        raise LayerscopeError(
            f"the judge {judge.name} cannot be asked: {problem}. Its weights may be damaged. "
            f"{advice}"
        ) from error
    keys = [text_key(text) for text in texts]
    vectors = read_readout(missing.space, keys, readout, request.site_names[0])
    if np.ptp(vectors, axis=0).max() <= 1e-6 * np.abs(vectors).max():
        raise LayerscopeError(
            f"the judge {judge.name} cannot be asked: it gives all texts the same vector. {advice}"
        )
    return vectors


def last_layer(model: LoadedModel, readout: Readout) -> EncodeRequest:
    """Return the request for a model's own last layer, of at most 256 tokens."""
    sites = expand_sites(None, model.anatomy)
    last = tuple(site for site in sites if site.layer == model.n_blocks)
    template = get_template(readout.template)
    return EncodeRequest(template, last, readout.kinds, min(256, model.max_length or 256))


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
