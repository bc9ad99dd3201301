"""Improve a search: choose how queries find documents best, each side read in its own way.

A folder of sentence-transformers has a prompt for each side and one pooling. So a *way* is a
template for each side, of two that end alike, read by the same pooling at the same layer. Each side
is centered on its own mean, or mapped by a head after that. The steps are those of `flow.py`, with
a query side. Half of the queries choose; the others say whether the choice is better than today's
reading, and by how much (`core.picking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from layerscope.core.candidates import Place, ScoredCandidates
from layerscope.core.heads import Head, Ridge, make_target, unit
from layerscope.core.picking import Picking, pick
from layerscope.core.readout import HEAD, Readout
from layerscope.core.templates import SLOT, get_template
from layerscope.errors import LayerscopeError
from layerscope.exporting.cutting import needs_filler
from layerscope.improving import finish as ending
from layerscope.improving.candidates import StoredCandidates, by_template, servable_grid
from layerscope.improving.choose import decide, relative_costs
from layerscope.improving.chosen import Chosen
from layerscope.improving.evidence import Change, Evidence, SearchEvidence
from layerscope.improving.fit import Fitted, encode_by_judge
from layerscope.improving.flow import keep_encoder
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, find_teacher, fit_heads
from layerscope.improving.judging import Judges, make_judges
from layerscope.improving.neighbors import BeforeAfter, changed_share, neighbor_table
from layerscope.improving.pairs import TOP, SearchTexts, ranking_scores
from layerscope.improving.request import Run
from layerscope.improving.result import Improved
from layerscope.improving.speed import compare_speeds
from layerscope.selection.choice import Choice
from layerscope.selection.judges.agreement import Neighborhoods
from layerscope.selection.judges.base import TEXTS, combined, text_weights
from layerscope.selection.judges.few_labels import LABELS_SHARE

NDCG, RECALL, AGREEMENT = f"nDCG@{TOP}", f"recall@{TOP}", "agreement"


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


@dataclass(frozen=True)
class Confirmed:
    """A choice with its place, and what the queries that did not choose say of it."""

    choice: Choice
    place: tuple[int, int]
    checked: dict[str, ScoredCandidates]
    picking: Picking
    queries: int


def improve_search(run: Run, texts: SearchTexts) -> Improved:
    """Choose how queries find documents, and make the model that was chosen."""
    if run.model.identity.get("sentence_encoder"):
        return keep_encoder(run)
    run.reader.check_differ(run.sample.texts)
    known = [*texts.queries[:100], *texts.documents[:100]]
    judges = make_judges(run.request.judge, None, run.model, known, run.request.offline)
    if judges.encoder is None and not texts.paired.any():
        raise LayerscopeError(
            "a search is judged by a sentence encoder (judge='minilm-l6') or by pairs=: give one "
            "of them."
        )
    ways = make_ways(servable_grid(run.model, run.request.templates, ()))
    sides = read_sides(run, judges, texts, ways)
    measured = add_heads(run, judges, sides, measure_ways(run, sides, ways))
    confirmed = decide_way(run, sides, measured)
    return finish(run, judges, sides, measured, confirmed)


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
    stored = []
    for kind, side, readouts in (
        ("queries", texts.queries, [way.query for way in ways]),
        ("documents", texts.documents, [way.document for way in ways]),
    ):
        label = f"{run.model.name} reads {len(side)} {kind}"
        run.reader.read(by_template(readouts), side, run.bar, label)
        layers = run.reader.layers
        stored.append(StoredCandidates(run.reader.spaces, [], layers, {TEXTS: side}))
    queries, documents = stored
    query_vectors = encode_by_judge(run, judges, texts.queries)
    document_vectors = encode_by_judge(run, judges, texts.documents)
    if query_vectors is None or document_vectors is None:
        return Sides(texts, queries, documents)
    reference = Neighborhoods.of(torch.as_tensor(_cosines(query_vectors, document_vectors)))
    return Sides(texts, queries, documents, (query_vectors, document_vectors), reference)


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
    return np.stack([_measure(sides, _cosines(*pair)) for pair in pairs])


def add_heads(run: Run, judges: Judges, sides: Sides, measured: Measured) -> Measured:
    """Fit a head at every layer, taught by the best way with a prompt, and measure it.

    Without a prompt that beats today's reading, the ways stay as they are.
    """
    layers = run.reader.layers
    readouts = measured.readouts
    choosing, _ = sides.texts.halves(run.request.seed)
    scores = _score(sides, measured.values, choosing, run.request.seed)
    encoder = "" if judges.encoder is None else judges.encoder.name
    teacher = find_teacher(scores, readouts, layers, encoder)
    if teacher is None:
        return measured
    best = measured.ways[readouts.index(teacher.readout)]
    prompted = _centered(sides, best, layers.index(teacher.layer))
    plain = Way(Readout(), Readout())
    raw = np.stack([_centered(sides, plain, place) for place in range(len(layers))])
    heads = fit_heads(teacher, raw, prompted)
    if heads is None:
        return measured
    count = len(sides.texts.queries)
    values = []
    for place in range(len(layers)):
        cosines = heads.similarities(place)
        values.append(_measure(sides, None if cosines is None else cosines[:count, count:]))
    return Measured(
        (*measured.ways, Way(HEAD_READOUT, HEAD_READOUT)),
        np.concatenate([measured.values, np.stack(values)[None]]),
        heads,
        prompted,
    )


def decide_way(run: Run, sides: Sides, measured: Measured) -> Confirmed:
    """Choose a way by half of the queries; keep today's unless the other half shows a gain."""
    layers = run.reader.layers
    readouts = measured.readouts
    budget = run.request.budget
    seed = run.request.seed
    choosing, checking = sides.texts.halves(seed)
    costs = _costs(run, sides, measured.ways)
    scores = _score(sides, measured.values, choosing, seed)
    everywhere = np.full(costs.shape, True)
    # whether it is better, the other half says
    choice = decide(scores, readouts, layers, costs, budget, only=everywhere)
    checked = _score_measures(sides, measured.values, checking, seed)
    today = (0, len(layers) - 1)
    names = [readout.name for readout in readouts]
    place = (names.index(str(choice.readout)), layers.index(choice.layer))
    count = int(sides.texts.paired[checking].sum()) or len(checking)
    picking = confirm(checked, place, today, budget is not None and budget < 1, seed)
    if place != today and not picking.moved:
        only_today = ~everywhere
        only_today[today] = True
        choice = decide(scores, readouts, layers, costs, only=only_today)
        reason = (
            f"on {count} queries that did not choose it, nothing is shown to be better than what "
            "you have"
        )
        choice = replace(choice, reason=reason, abstained=True)
        place = today
    return Confirmed(choice, place, checked, picking, count)


def confirm(
    checked: Mapping[str, ScoredCandidates], place: Place, today: Place, forced: bool, seed: int
) -> Picking:
    """Return whether a choice is better on some queries, by the first measure.

    Places in the answer begin with a measure's number.
    """
    score = np.stack([scores.score for scores in checked.values()])
    draws = np.stack([_draws(scores) for scores in checked.values()])
    allowed = np.zeros(score.shape, dtype=bool)
    allowed[(0, *place)] = True
    places = (place, (place[0], today[1]), today)
    also = tuple((i, *other) for i in range(len(checked)) for other in places)
    scored = ScoredCandidates(score, draws)
    return pick(scored, allowed, lambda _: (0, *today), also, forced=forced, seed=seed)


def finish(
    run: Run, judges: Judges, sides: Sides, measured: Measured, confirmed: Confirmed
) -> Improved:
    """Fit what was done to each side's vectors, and write the result."""
    choice = confirmed.choice
    way = measured.ways[confirmed.place[0]]
    layer = choice.layer
    query_fit, document_fit = _fit_sides(run, sides, measured, way, layer)
    query = Chosen(run.model, run.reader, way.query, layer, query_fit)
    evidence = search_evidence(run, judges, sides, confirmed, way)
    chosen = Chosen(
        run.model,
        run.reader,
        way.document,
        layer,
        document_fit,
        None if evidence.kept_default else query,
    )
    today = ending.todays_reading(run)
    queries = BeforeAfter(
        sides.texts.queries,
        sides.queries.raw(Readout(), run.model.n_blocks),
        query.transform(sides.queries.raw(way.query, layer)),
    )
    documents = BeforeAfter(
        sides.texts.documents,
        sides.documents.raw(Readout(), run.model.n_blocks),
        chosen.transform(sides.documents.raw(way.document, layer)),
    )
    teacher = None
    if measured.heads is not None and way.document.centering == HEAD:
        teacher = measured.heads.teacher.describe()
    evidence = replace(
        evidence,
        teacher=teacher,
        texts_per_second=compare_speeds(judges, today.encode, chosen.encode, sides.texts.documents),
        changed_neighbors=changed_share(documents.before, documents.after),
    )
    finding = ending.Finding(
        replace(choice, readout=way.document.name),
        evidence,
        chosen,
        documents,
        neighbor_table(queries, documents),
        notes=judges.notes,
    )
    return ending.write_result(run, ending.explain(run, finding))


def search_evidence(
    run: Run, judges: Judges, sides: Sides, confirmed: Confirmed, way: Way
) -> Evidence:
    """Return what the queries that did not choose say of the choice."""
    checked = confirmed.checked
    place = confirmed.place
    today = (0, len(run.reader.layers) - 1)
    changes = {}
    for i, (name, scores) in enumerate(checked.items()):
        gain = confirmed.picking.gain((i, *place), (i, *today))
        before = float(scores.score[today])
        changes[name] = Change(before, before + gain.value, (gain.low, gain.high))
    measure, change = next(iter(changes.items()))
    gain = confirmed.picking.gain((0, place[0], today[1]), (0, *today))
    middle = change.before + gain.value
    encoder = "" if judges.encoder is None else judges.encoder.name
    names = [f"{sides.texts.facts['pairs']['used']} pairs"] if NDCG in checked else []
    names += [f"agreement with {encoder}"] if encoder else []
    own = None
    if sides.encoded is not None and NDCG in checked:
        _, checking = sides.texts.halves(run.request.seed)
        ndcg, _ = ranking_scores(_cosines(*sides.encoded), sides.texts.relevant)
        own = float(np.nanmean(ndcg[checking]))
    return replace(
        ending.evidence_of(judges, confirmed.choice),
        judge=" and ".join(names),
        score_name=measure if measure == NDCG else f"agreement with {encoder}",
        before=change.before,
        after=change.after,
        interval=change.interval,
        readout_gain=middle - change.before,
        layer_gain=change.after - middle,
        search=SearchEvidence(
            measures=changes,
            queries=confirmed.queries,
            documents=len(sides.texts.documents),
            judge=encoder,
            own=own,
            prompts={
                "query": get_template(way.query.template).pattern,
                "document": get_template(way.document.template).pattern,
            },
            readout=way.joined.name,
            query=way.query.name,
        ),
    )


def _measure(sides: Sides, similarity: np.ndarray | None) -> np.ndarray:
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


def _score_measures(
    sides: Sides, values: np.ndarray, half: np.ndarray, seed: int
) -> dict[str, ScoredCandidates]:
    """Return the score by each measure on some queries, the one that decides first.

    All are on the same resamples.
    """
    paired = sides.texts.paired[half]
    groups = [group for group in (half[paired], half[~paired]) if len(group)]
    weights = [len(group) * text_weights(len(group), seed + k) for k, group in enumerate(groups)]
    drawn = np.concatenate(weights, axis=1)
    order = np.concatenate(groups)
    with_pairs = int(paired.sum())
    counts = {NDCG: with_pairs, RECALL: with_pairs, AGREEMENT: len(half)}
    if sides.reference is None:
        del counts[AGREEMENT]
    scores = {}
    for i, (name, count) in enumerate(counts.items()):
        if count:
            items = values[:, :, i, order[:count]].astype(np.float64)
            draws = items @ drawn[:, :count].T / count
            scores[name] = ScoredCandidates(items.mean(-1), draws, judge=name)
    return scores


def _score(sides: Sides, values: np.ndarray, half: np.ndarray, seed: int) -> ScoredCandidates:
    """Return the score that chooses: by pairs and by the encoder, as far as there are such."""
    scores = _score_measures(sides, values, half, seed)
    shares = {NDCG: LABELS_SHARE, AGREEMENT: 1.0}
    names = [name for name in shares if name in scores]
    return combined([scores[name] for name in names], [shares[name] for name in names])


def _costs(run: Run, sides: Sides, ways: Sequence[Way]) -> np.ndarray:
    """Return what ways cost (ways, layers), relative to today, for documents."""
    names = list(dict.fromkeys(way.document.template for way in ways))
    tokens = run.reader.tokens(names, sides.texts.documents[:200])
    more = [needs_filler(run.model, way.document.final_norm) for way in ways]
    each = [tokens[way.document.template] for way in ways]
    return relative_costs(each, run.reader.layers, run.model.n_blocks, more)


def _centered(sides: Sides, way: Way, place: int) -> np.ndarray:
    """Return vectors of queries, then of documents, each centered on their own mean."""
    query = replace(way.query, centering="corpus")
    document = replace(way.document, centering="corpus")
    return np.concatenate(
        [sides.queries.vectors(query)[place], sides.documents.vectors(document)[place]]
    )


def _fit_sides(
    run: Run, sides: Sides, measured: Measured, way: Way, layer: int
) -> tuple[Fitted | None, Fitted | None]:
    """Return what is done to the vectors of queries and of documents."""
    if way.document.centering == "none":
        return None, None
    matrix = None
    heads = measured.heads
    if way.document.centering == HEAD and heads is not None and measured.prompted is not None:
        teachers = [measured.prompted]
        if sides.encoded is not None:
            teachers.append(np.concatenate([rows - rows.mean(0) for rows in sides.encoded]))
        raw = heads.raw[run.reader.layers.index(layer)]
        matrix = Ridge(raw, make_target(*teachers)).head().matrix

    def fit(kind: str, side: StoredCandidates, readout: Readout) -> Fitted:
        facts = sides.texts.facts[kind]
        sample = replace(run.sample, total=facts["distinct"], name=facts["name"])
        return Fitted.of(sample, facts["read"], Head(side.mean(readout, layer), matrix))

    return (
        fit("queries", sides.queries, way.query),
        fit("documents", sides.documents, way.document),
    )


def _draws(scores: ScoredCandidates) -> np.ndarray:
    assert scores.draws is not None
    return scores.draws


def _cosines(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    return unit(queries) @ unit(documents).T
