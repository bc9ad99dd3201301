"""The candidates of an improvement: how a model may read texts, and the vectors that result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerscope.capture import expand_sites
from layerscope.choose import Candidate
from layerscope.choose.judges import TEXTS, cosines, similarities
from layerscope.choose.labels import Labeled
from layerscope.core.heads import Head, Ridge
from layerscope.core.identity import model_key
from layerscope.core.readout import Readout
from layerscope.core.sites import site_of
from layerscope.core.templates import POOLINGS, SLOT, get_template, names_of
from layerscope.engines import Engine, ModelRecipe
from layerscope.errors import DataError, ExportError, LayerscopeError
from layerscope.exporting.cutting import needs_filler
from layerscope.exporting.formats import FORMATS
from layerscope.exporting.servers import facts_of, plan_formats
from layerscope.improving.request import LEAST_TEXTS, ImproveRequest, Sample, SearchTexts
from layerscope.models import LoadedModel
from layerscope.progress import OnRows, Progress
from layerscope.vectors import VectorSpace, VectorStore, text_key
from layerscope.vectors.encode import encode, find_missing, make_requests, open_space, read_readout
from layerscope.vectors.encoder import EncodeRequest, TextEncoder
from layerscope.version import VERSION

QUERIES = "queries"
"""The view of the queries of a search; its documents are the texts."""

TIMED = 12
"""Texts on which the speed of models is measured."""

UNTRAINED = (
    "the model's weights are as before any training: it knows nothing of what these texts mean."
)

Encode = Callable[[Sequence[str]], Any]


# Which readouts


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


def pair_readouts(grid: Sequence[Readout]) -> list[tuple[Readout, Readout]]:
    """Return the readouts of queries and of documents that go together, the baseline's first.

    A folder of sentence-transformers has a prompt for each side and one pooling. So the two differ
    in nothing but the words before the text.
    """

    def ending_of(readout: Readout) -> tuple[str, Readout]:
        after = get_template(readout.template).pattern.split(SLOT)[1]
        return after, replace(readout, template="")

    documents = [readout for readout in grid if not get_template(readout.template).queries]
    return [
        (query, document)
        for document in documents
        for query in grid
        if ending_of(query) == ending_of(document)
    ]


def make_candidates(
    model: LoadedModel,
    readouts: Sequence[tuple[Readout | None, Readout]],
    tokens: Mapping[str, float],
) -> list[Candidate]:
    """Return all layers of a model under all readouts, given as pairs of a query's and a text's.

    The cost is relative to the baseline's: mean tokens per text × blocks that run.
    """
    candidates = []
    for query, readout in readouts:
        share = tokens[readout.template] / tokens["plain"]
        filler = needs_filler(model, readout.final_norm)
        for layer in range(model.n_blocks + 1):
            # the embeddings alone are not free
            cost = share * max(layer + filler, 0.5) / model.n_blocks
            blocks = tuple(range(layer))
            candidates.append(Candidate(blocks, readout=readout, query=query, cost=cost))
    return candidates


def template_of(candidate: Candidate) -> str:
    """Return the name of a candidate's template; of a search both."""
    return candidate.readout_name.rsplit("/", 4)[0]


def baseline_of(candidates: Sequence[Candidate]) -> int:
    """Return the place of the last layer under the default readout."""
    plain = Readout().name
    places = [i for i, item in enumerate(candidates) if item.readout_name == plain]
    return max(places, key=lambda place: candidates[place].layer)


# Reading texts


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
                f"{self.max_length} tokens; at least {LEAST_TEXTS} are needed. Raise max_length=, "
                "or give texts that begin differently."
            )

    def _space(self, template: str) -> VectorSpace:
        return open_space(self.store, self.model, get_template(template), self.max_length)


@dataclass(frozen=True)
class Chosen:
    """A layer of a model under a readout, with the head (or the mean) that was fitted for it.

    `query` says how queries are read, where that differs. `formats` are written beside the folder.
    """

    reader: Reader
    readout: Readout
    layer: int
    head: Head | None = None
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
        return pooled if self.head is None else self.head(pooled).astype(np.float32)


def seconds_per_text(encoder: Encode, texts: Sequence[str]) -> float:
    """Return how long an encoder takes for a text, timed on a few."""
    encoder(texts[:2])  # pays for what is done once
    start = perf_counter()
    encoder(texts[:TIMED])
    return (perf_counter() - start) / len(texts[:TIMED])


@dataclass(frozen=True)
class Run:
    """One improvement: its request with the model, the sample of texts and the reader.

    `source` is the model as the user gave it, `labels` are the labeled examples, `search` the
    queries that should find the texts, and `work` the folder for unfinished work. `started` is in
    seconds.
    """

    request: ImproveRequest
    source: Any
    sample: Sample
    search: SearchTexts | None
    labels: Labeled | None
    reader: Reader
    bar: Progress
    started: float
    work: Path | None = None
    on_rows: OnRows | None = None

    @property
    def model(self) -> LoadedModel:
        """Return the model that is improved."""
        return self.reader.model

    @property
    def config(self) -> dict[str, Any]:
        """Return what tells this run from others, for its manifest."""
        request = self.request
        names = ("budget", "keep", "sample", "max_length", "seed", "center_on", "time")
        return {
            "model": model_key(self.model.identity),
            "texts": {"fingerprint": self.sample.facts["fingerprint"], "kept": request.texts},
            "templates": list(request.templates),
            "judge": request.judge if isinstance(request.judge, str) else request.judge.name,
            "labels": None if self.labels is None else self.labels.fingerprint,
            "servers": list(request.servers),
            **{name: getattr(request, name) for name in names},
            "train": None if request.train is None else dict(request.train),
            "search": None if self.search is None else self.search.key,
            "layerscope": VERSION,
        }


def server_needs(run: Run, readout: Readout, head: bool = False) -> tuple[list[str], list[str]]:
    """Return what keeps the servers from opening a readout, and the formats that they need."""
    servers = run.request.servers
    return plan_formats(facts_of(run.model, readout, head), servers) if servers else ([], [])


def servable_readouts(run: Run) -> list[Readout]:
    """Return the readouts to try that the servers open; raise where there is none."""
    model = run.model
    has_norm = model.anatomy.final_norm is not None
    grid = make_grid(run.request.templates, has_cls=model.has_class_token, has_norm=has_norm)
    problems, formats = server_needs(run, grid[0])
    for name in formats:
        FORMATS.get(name).check()
        FORMATS.get(name).check_choice(model, model.n_blocks, grid[0])
    if problems:
        raise LayerscopeError(f"no readout of {model.name} opens there: {'; '.join(problems)}.")
    return [readout for readout in grid if not server_needs(run, readout)[0]]


def is_writable(run: Run, candidate: Candidate) -> bool:
    """Return whether the formats that the servers need can hold a candidate."""
    readout = candidate.readout
    assert readout is not None
    try:
        for name in server_needs(run, readout, candidate.transform == "head")[1]:
            FORMATS.get(name).check_choice(run.model, candidate.layer, readout)
    except ExportError:
        return False
    return True


def notes_on_reading(run: Run, readout: Readout) -> list[str]:
    """Return notes on the weights, and on texts that were cut."""
    notes = []
    identity = run.model.identity
    if identity.get("untrained"):
        notes.append(UNTRAINED)
    texts = run.sample.texts
    for name in dict.fromkeys(["plain", readout.template]):
        cut = run.reader.truncated(name, texts)
        if cut:
            notes.append(
                f"{cut} of {len(texts)} texts were cut to {run.reader.max_length} tokens ({name})."
            )
    if identity.get("quantization"):
        notes.append(f"the weights were quantized ({identity['quantization']}) in their source.")
    return notes


# The vectors of candidates


@dataclass(frozen=True)
class Teacher:
    """The best prompt at its layer, from which heads learn.

    The exported head learns from the `encoder` too, where one judges.
    """

    candidate: Candidate
    encoder: str = ""

    def describe(self, prompts: Sequence[Readout] = ()) -> str:
        """Return the teachers in words: these prompts, or the best alone."""
        templates = [prompt.template for prompt in prompts] or [template_of(self.candidate)]
        names = [f"the {name} prompt" for name in templates]
        words = f"{', '.join(names)} at layer {self.candidate.layer}"
        return f"{words} and {self.encoder}" if self.encoder else words


@dataclass(frozen=True)
class Heads:
    """A head at every layer, from vectors `raw` (layers, texts, D) to the target (texts, K).

    The target are the teacher's vectors of the texts. Vectors and similarities of the texts
    themselves are from heads that were not fitted on them.
    """

    teacher: Teacher
    raw: Sequence[np.ndarray]
    target: np.ndarray

    def similarities(self, layer: int) -> np.ndarray | None:
        """Return cosines of every two texts by the head fitted on neither; None if undefined."""
        if is_constant(self.raw[layer]):
            return None
        similarity = Ridge(self.raw[layer], self.target).unseen_similarities()
        np.fill_diagonal(similarity, -np.inf)
        return similarity

    def unseen(self, layer: int) -> np.ndarray:
        """Return every text's vector (texts, K) by the head fitted on all others."""
        if is_constant(self.raw[layer]):
            return np.full(self.target.shape, np.nan, dtype=np.float32)
        return Ridge(self.raw[layer], self.target).unseen().astype(np.float32)

    def apply(self, layer: int, rows: np.ndarray) -> np.ndarray:
        """Return vectors (n, K) of other texts, from theirs (n, D)."""
        return Ridge(self.raw[layer], self.target).head()(rows).astype(np.float32)


@dataclass(frozen=True)
class StoredCandidates:
    """Candidates whose vectors are in the store of a reader.

    `views` are texts by the name of the view; a search has its documents as the texts, and a view
    of queries. Centering subtracts the mean over the texts themselves, for their parts as well, as
    the exported model will; queries have a mean of their own. With `heads`, a head's vectors of the
    texts come from heads that were not fitted on them.
    """

    reader: Reader
    candidates: Sequence[Candidate]
    views: Mapping[str, Sequence[str]]
    heads: Heads | None = None
    _recent: dict[tuple[str, ...], np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def is_search(self) -> bool:
        """Return whether queries look for the texts."""
        return QUERIES in self.views

    @property
    def texts(self) -> Sequence[str]:
        """Return the texts that are judged on."""
        return self.views[TEXTS]

    def read(self, bar: Progress, label: str) -> None:
        """Encode what the store lacks, under the templates of the candidates."""
        texts = [text for name, view in self.views.items() if name != QUERIES for text in view]
        readouts = [item.readout for item in self.candidates if item.readout is not None]
        self.reader.read(list(dict.fromkeys(readouts)), list(dict.fromkeys(texts)), bar, label)
        if self.is_search:
            queries = [item.query for item in self.candidates if item.query is not None]
            self.reader.read(list(dict.fromkeys(queries)), self.views[QUERIES], bar, label)

    def vectors(self, candidate: Candidate, view: str = TEXTS) -> np.ndarray:
        """Return vectors (texts, D); NaN where all texts have the same one."""
        rows = self.raw(candidate, view)
        if candidate.transform == "head":
            return self._through_head(candidate, view, rows)
        texts = rows if view == QUERIES else self.raw(candidate)
        if is_constant(texts):
            return np.full_like(rows, np.nan)
        readout = candidate.readout
        is_centered = readout is not None and readout.centering == "corpus"
        return rows - _mean(texts).astype(np.float32) if is_centered else rows

    def similarity(self, candidate: Candidate) -> Tensor | None:
        """Return cosines (texts, texts), of a search (queries, documents); None if undefined.

        Those of a head are from heads that were fitted on neither text.
        """
        if candidate.transform == "head":
            assert self.heads is not None
            similarity = self.heads.similarities(candidate.layer)
            if similarity is None:
                return None
            count = len(self.views.get(QUERIES, ()))
            return torch.as_tensor(similarity[:count, count:] if count else similarity)
        rows = self.vectors(candidate)
        if not self.is_search:
            return similarities(rows) if np.isfinite(rows).all() else None
        queries = self.vectors(candidate, QUERIES)
        is_defined = np.isfinite(rows).all() and np.isfinite(queries).all()
        return cosines(queries, rows) if is_defined else None

    def raw(self, candidate: Candidate, view: str = TEXTS) -> np.ndarray:
        """Return vectors (texts, D), neither centered nor through a head."""
        readout = candidate.query if view == QUERIES else candidate.readout
        assert readout is not None
        key = (readout.template, *readout.kinds, view)
        if key not in self._recent:
            if len(self._recent) > 3:  # the four views of one readout: more take too much memory
                del self._recent[next(iter(self._recent))]
            texts = self.views[view]
            layers = range(self.reader.model.n_blocks + 1)
            self._recent[key] = np.stack(
                [self.reader.stored(readout, layer, texts) for layer in layers]
            )
        vectors: np.ndarray = self._recent[key][candidate.layer]
        return vectors

    def mean(self, candidate: Candidate, view: str = TEXTS) -> np.ndarray:
        """Return the mean (D,) of the texts' vectors, in double precision."""
        return _mean(self.raw(candidate, view))

    def taught(self, candidate: Candidate) -> np.ndarray:
        """Return the vectors that heads learn from: in a search queries, then documents, each
        centered on their own mean."""
        if not self.is_search:
            return self.raw(candidate)
        sides = [self.raw(candidate, view) for view in (QUERIES, TEXTS)]
        return np.concatenate([rows - _mean(rows).astype(np.float32) for rows in sides])

    def _through_head(self, candidate: Candidate, view: str, rows: np.ndarray) -> np.ndarray:
        """Return vectors by the head; of texts that it was fitted on, by others."""
        assert self.heads is not None
        unseen = self.heads.unseen(candidate.layer)
        count = len(self.views.get(QUERIES, ()))
        if view in (TEXTS, QUERIES):
            return unseen[count:] if view == TEXTS else unseen[:count]
        vectors = self.heads.apply(candidate.layer, rows)
        places = {text: i for i, text in enumerate(self.texts)}
        for i, text in enumerate(self.views[view]):
            if text in places:
                vectors[i] = unseen[places[text]]
        return vectors


def is_constant(rows: np.ndarray) -> bool:
    """Return whether all texts have the same vector."""
    return bool(np.ptp(rows, axis=0).max() <= 1e-6 * max(1e-30, np.abs(rows).max()))


def _mean(rows: np.ndarray) -> np.ndarray:
    return rows.mean(0, dtype=np.float64)
