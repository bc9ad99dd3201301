"""Ways to read queries and documents, and what is measured of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from layerscope.choose import weigh_by_reliability
from layerscope.choose.judges.agreement import Neighborhoods
from layerscope.choose.judges.base import TEXTS, text_weights
from layerscope.choose.label_scores import LABELS_SHARE
from layerscope.core.heads import unit
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores
from layerscope.core.templates import SLOT, get_template
from layerscope.improving.candidates import StoredCandidates
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, find_teacher, fit_heads
from layerscope.improving.judging import Judges, encode_by_judge
from layerscope.improving.pairs import TOP, SearchTexts, ranking_scores
from layerscope.improving.request import Run

NDCG = f"nDCG@{TOP}"
RECALL = f"recall@{TOP}"
AGREEMENT = "agreement"


@dataclass(frozen=True)
class Way:
    """The readouts of both sides."""

    query: Readout
    document: Readout

    @property
    def joined(self) -> Readout:
        """Return both as one readout, to name a candidate by."""
        names = dict.fromkeys([self.query.template, self.document.template])
        return replace(self.document, template="+".join(names))

    @property
    def prompts(self) -> dict[str, str]:
        """Return the words around each side's texts."""
        sides = {"query": self.query, "document": self.document}
        return {name: get_template(side.template).pattern for name, side in sides.items()}


@dataclass(frozen=True)
class Sides:
    """Both sides with their stored vectors, and what the judging encoder says of them.

    `encoded` has the encoder's vectors of queries and of documents.
    """

    texts: SearchTexts
    queries: StoredCandidates
    documents: StoredCandidates
    encoded: tuple[np.ndarray, np.ndarray] | None = None
    reference: Neighborhoods | None = None

    def centered(self, way: Way, layer: int) -> np.ndarray:
        """Return vectors of queries, then of documents, each centered on their own mean."""
        sides = ((self.queries, way.query), (self.documents, way.document))
        return np.concatenate(
            [side.vectors(replace(readout, centering="corpus"))[layer] for side, readout in sides]
        )


@dataclass(frozen=True)
class Measured:
    """Ways with what was measured of them: (ways, layers, 3, queries), and heads besides.

    The three are nDCG, recall and agreement. `prompted` are the vectors that taught the heads.
    """

    ways: tuple[Way, ...]
    values: np.ndarray
    heads: Heads | None = None
    prompted: np.ndarray | None = None

    @property
    def readouts(self) -> list[Readout]:
        """Return the ways as readouts."""
        return [way.joined for way in self.ways]


def make_ways(grid: Sequence[Readout]) -> list[Way]:
    """Return the readouts that go together, today's first: alike but for words before the text."""

    def ending_of(readout: Readout) -> tuple[str, Readout]:
        after = get_template(readout.template).pattern.split(SLOT)[1]
        return after, replace(readout, template="")

    documents = [readout for readout in grid if not get_template(readout.template).queries]
    return [
        Way(query, document)
        for document in documents
        for query in grid
        if ending_of(query) == ending_of(document)
    ]


def read_sides(run: Run, judges: Judges, texts: SearchTexts, ways: Sequence[Way]) -> Sides:
    """Encode both sides under their templates, and by the judging encoder."""
    queries = [way.query for way in ways]
    documents = [way.document for way in ways]
    name = run.model.name
    count = f"{len(texts.queries)} queries|readings"
    run.reader.read(queries, texts.queries, run.bar, f"{name} reads {count}")
    count = f"{len(texts.documents)} documents|readings"
    run.reader.read(documents, texts.documents, run.bar, f"{name} reads {count}")
    sides = Sides(
        texts,
        StoredCandidates(run.reader, queries, {TEXTS: texts.queries}),
        StoredCandidates(run.reader, documents, {TEXTS: texts.documents}),
    )
    if judges.encoder is None:
        return sides
    encoded_queries = encode_by_judge(judges.encoder, texts.queries, run.bar)
    encoded_documents = encode_by_judge(judges.encoder, texts.documents, run.bar)
    cosines = torch.as_tensor(cosines_between(encoded_queries, encoded_documents))
    return replace(
        sides,
        encoded=(encoded_queries, encoded_documents),
        reference=Neighborhoods.of(cosines),
    )


def measure_ways(run: Run, sides: Sides, ways: Sequence[Way]) -> Measured:
    """Measure every way at every layer."""
    run.bar.begin("judging|ways", len(ways))
    values = []
    for way in ways:
        values.append(measure_way(sides, way))
        run.bar.advance(1)
    return Measured(tuple(ways), np.stack(values))


def measure_way(sides: Sides, way: Way) -> np.ndarray:
    """Return what is measured of a way at every layer (layers, 3, queries)."""
    queries = sides.queries.vectors(way.query)
    documents = sides.documents.vectors(way.document)
    pairs = zip(queries, documents, strict=True)
    return np.stack([measure(sides, cosines_between(*pair)) for pair in pairs])


def add_heads(run: Run, judges: Judges, sides: Sides, measured: Measured) -> Measured:
    """Fit a head at every layer, taught by the best way with a prompt, and measure it.

    Without a prompt that beats today's reading, the ways stay as they are.
    """
    layers = run.reader.layers
    choosing, _ = sides.texts.halves(run.request.seed)
    scores = score_ways(sides, measured.values, choosing, run.request.seed)
    teacher = find_teacher(scores, measured.readouts, layers, judges.encoder_name)
    if teacher is None:
        return measured
    best = measured.ways[measured.readouts.index(teacher.readout)]
    prompted = sides.centered(best, teacher.layer)
    plain = Way(Readout(), Readout())
    raw = np.stack([sides.centered(plain, layer) for layer in layers])
    heads = fit_heads(teacher, raw, prompted)
    if heads is None:
        return measured
    count = len(sides.texts.queries)
    values = []
    for layer in layers:
        cosines = heads.similarities(layer)
        values.append(measure(sides, None if cosines is None else cosines[:count, count:]))
    return Measured(
        (*measured.ways, Way(HEAD_READOUT, HEAD_READOUT)),
        np.concatenate([measured.values, np.stack(values)[None]]),
        heads,
        prompted,
    )


def measure(sides: Sides, similarity: np.ndarray | None) -> np.ndarray:
    """Return nDCG, recall and agreement (3, queries) of similarities (queries, documents).

    They are NaN where they say nothing.
    """
    count = len(sides.texts.queries)
    if similarity is None or not np.isfinite(similarity).all():
        return np.full((3, count), np.nan)
    agreement = np.full(count, np.nan)
    if sides.reference is not None:
        cosines = torch.as_tensor(similarity, dtype=torch.float32)
        agreement = sides.reference.agreement(cosines).numpy()
    return np.stack([*ranking_scores(similarity, sides.texts.relevant), agreement])


def score_measures(
    sides: Sides, values: np.ndarray, half: np.ndarray, seed: int
) -> dict[str, Scores]:
    """Return the score by each measure on some queries, the one that decides first.

    All are on the same resamples.
    """
    paired = sides.texts.paired[half]
    groups = [group for group in (half[paired], half[~paired]) if len(group)]
    weights = [len(group) * text_weights(len(group), seed + k) for k, group in enumerate(groups)]
    drawn = np.concatenate(weights, axis=1)
    order = np.concatenate(groups)
    counts = [int(paired.sum()), int(paired.sum()), 0 if sides.reference is None else len(half)]
    scores = {}
    for i, name in enumerate((NDCG, RECALL, AGREEMENT)):
        count = counts[i]
        if count:
            items = values[:, :, i, order[:count]].reshape(-1, count).astype(np.float64)
            draws = items @ drawn[:, :count].T / count
            scores[name] = Scores(items.mean(axis=1), draws, name)
    return scores


def score_ways(sides: Sides, values: np.ndarray, half: np.ndarray, seed: int) -> Scores:
    """Return the score that chooses: by pairs and by the encoder, as far as there are such."""
    scores = score_measures(sides, values, half, seed)
    weights = {NDCG: LABELS_SHARE, AGREEMENT: 1.0}
    return weigh_by_reliability(
        [replace(scores[name], weight=weights[name]) for name in weights if name in scores]
    )


def cosines_between(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return unit(queries) @ unit(documents).T
