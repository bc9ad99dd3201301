"""Improve a search: choose how queries find documents best, each side read in its own way.

A folder of sentence-transformers has a prompt for each side and one pooling. So a *way* is a
template for each side, of two that end alike, read by the same pooling at the same layer. Each side
is centered on its own mean, or mapped by a head after that. The steps are those of `flow.py`, with
a query side. Half of the queries choose; the others say whether the choice is better than today's
reading, and by how much (`choose.claims`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from layerscope.choose import (
    Candidate,
    Decision,
    Limits,
    SplitScores,
    claim_of_any,
    decide,
)
from layerscope.choose.choice import Choice
from layerscope.choose.decide import limits_by_judge
from layerscope.core.heads import Head, Ridge, make_target
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError
from layerscope.improving.candidates import StoredCandidates, servable_grid
from layerscope.improving.choose import as_choice, baseline_of, make_candidates
from layerscope.improving.chosen import Chosen
from layerscope.improving.evidence import Change, Evidence, SearchEvidence
from layerscope.improving.finish import Finding, evidence_of, explain, todays_reading, write_result
from layerscope.improving.fit import Fitted
from layerscope.improving.flow import keep_encoder
from layerscope.improving.judging import Judges, make_judges
from layerscope.improving.neighbors import BeforeAfter, changed_share, neighbor_table
from layerscope.improving.pairs import SearchTexts, ranking_scores
from layerscope.improving.request import Run
from layerscope.improving.result import Improved
from layerscope.improving.speed import compare_speeds
from layerscope.improving.ways import (
    NDCG,
    Measured,
    Sides,
    Way,
    add_heads,
    cosines_between,
    make_ways,
    measure_ways,
    read_sides,
    score_measures,
    score_ways,
    way_costs,
)


@dataclass(frozen=True)
class Check:
    """The comparison of a choice with today's reading by every measure, on further queries."""

    split: SplitScores
    decision: Decision
    count: int

    @property
    def moved(self) -> bool:
        """Whether the choice leads today's by more than luck by the first measure."""
        return self.decision.chosen != self.decision.baseline

    def gain(self, measure: int, place: int, other: int) -> Interval:
        """Return what one place gains over another by a measure."""
        start = measure * self.count
        decision = self.decision
        return self.split.claim(decision.rule, decision.chosen, start + other, start + place).gain


@dataclass(frozen=True)
class Confirmed:
    """A choice with its place, and what the queries that did not choose say of it."""

    choice: Choice
    place: int
    checked: dict[str, Scores]
    check: Check
    queries: int


def improve_search(run: Run, texts: SearchTexts) -> Improved:
    """Choose how queries find documents, and make the model that was chosen."""
    if run.model.identity.get("sentence_encoder"):
        return keep_encoder(run)
    run.reader.check_differ(run.sample.texts)
    known = [*texts.queries[:100], *texts.documents[:100]]
    judges = make_judges(run.request.judge, None, run.model, known)
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


def decide_way(run: Run, sides: Sides, measured: Measured) -> Confirmed:
    """Choose a way by half of the queries; keep today's unless the other half shows a gain."""
    layers = run.reader.layers
    readouts = measured.readouts
    budget = run.request.budget
    seed = run.request.seed
    choosing, checking = sides.texts.halves(seed)
    costs = way_costs(run, sides, measured.ways)
    scores = score_ways(sides, measured.values, choosing, seed)
    candidates = make_candidates(readouts, layers, costs)
    today = baseline_of(candidates)
    # whether it is better, the other half says
    limits = limits_by_judge(budget, stay=False)
    decision = decide(candidates, [scores], today, limits, claim_of_any(scores))
    checked = score_measures(sides, measured.values, checking, seed)
    count = int(sides.texts.paired[checking].sum()) or len(checking)
    forced = budget is not None and budget < 1
    check = confirm(checked, decision.chosen, today, len(layers), forced, seed)
    if decision.chosen == today or check.moved:
        choice = as_choice(decision, candidates, scores)
        return Confirmed(choice, decision.chosen, checked, check, count)
    reason = (
        f"on {count} queries that did not choose it, nothing is shown to be better than what "
        "you have"
    )
    only_today = scores.where(np.arange(len(candidates)) == today)
    decision = decide(candidates, [only_today], today, limits_by_judge(None), claim_of_any(scores))
    choice = as_choice(decision, candidates, scores)
    return Confirmed(replace(choice, reason=reason, abstained=True), today, checked, check, count)


def confirm(
    checked: Mapping[str, Scores], place: int, today: int, layers: int, forced: bool, seed: int
) -> Check:
    """Compare a place with today's by every measure; a forced one is taken whatever it gains."""
    scores = list(checked.values())
    count = len(scores[0].values)
    draws = np.concatenate([_draws(part) for part in scores])
    stacked = Scores(np.concatenate([part.values for part in scores]), draws)
    allowed = np.arange(len(draws)) == place
    last = (place // layers + 1) * layers - 1
    others = [i * count + other for i in range(len(scores)) for other in (place, last, today)]
    split = SplitScores.of(stacked, allowed, today, others, seed)
    candidates = [Candidate((), blocked="" if may else "not chosen") for may in allowed]
    limits = Limits(lead=None if forced else split.lead)
    decision = decide(candidates, [stacked], today, limits, split.claim, split.noise)
    return Check(split, decision, count)


def finish(
    run: Run, judges: Judges, sides: Sides, measured: Measured, confirmed: Confirmed
) -> Improved:
    """Fit what was done to each side's vectors, and write the result."""
    choice = confirmed.choice
    way = measured.ways[confirmed.place // len(run.reader.layers)]
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
    today = todays_reading(run)
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
    finding = Finding(
        replace(choice, readout=way.document.name),
        evidence,
        chosen,
        documents,
        neighbor_table(queries, documents),
        notes=judges.notes,
    )
    return write_result(run, explain(run, finding))


def search_evidence(
    run: Run, judges: Judges, sides: Sides, confirmed: Confirmed, way: Way
) -> Evidence:
    """Return what the queries that did not choose say of the choice."""
    checked = confirmed.checked
    place = confirmed.place
    layers = len(run.reader.layers)
    today = layers - 1
    last = (place // layers + 1) * layers - 1
    changes = {}
    for i, (name, scores) in enumerate(checked.items()):
        gain = confirmed.check.gain(i, place, today)
        before = float(scores.values[today])
        changes[name] = Change(before, before + gain.value, (gain.low, gain.high))
    measure, change = next(iter(changes.items()))
    middle = change.before + confirmed.check.gain(0, last, today).value
    encoder = "" if judges.encoder is None else judges.encoder.name
    names = [f"{sides.texts.facts['pairs']['used']} pairs"] if NDCG in checked else []
    names += [f"agreement with {encoder}"] if encoder else []
    own = None
    if sides.encoded is not None and NDCG in checked:
        _, checking = sides.texts.halves(run.request.seed)
        ndcg, _ = ranking_scores(cosines_between(*sides.encoded), sides.texts.relevant)
        own = float(np.nanmean(ndcg[checking]))
    return replace(
        evidence_of(judges, confirmed.choice),
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
            prompts=way.prompts,
            readout=way.joined.name,
            query=way.query.name,
        ),
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


def _draws(scores: Scores) -> np.ndarray:
    assert scores.draws is not None
    return scores.draws
