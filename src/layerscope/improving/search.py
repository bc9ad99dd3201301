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

from layerscope.choose import Candidate, Decision, Limits, SplitScores, claim_of_any, decide
from layerscope.choose.decide import limits_by_judge
from layerscope.core.heads import Head, Ridge, make_target
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores
from layerscope.core.statistics import Interval
from layerscope.errors import LayerscopeError
from layerscope.improving.candidates import servable_grid
from layerscope.improving.decision import (
    Change,
    Evidence,
    Outcome,
    SearchEvidence,
    baseline_of,
    candidate_costs,
    describe,
    make_candidates,
)
from layerscope.improving.finish import compare_speeds, todays_reading, write_result
from layerscope.improving.judging import Judges, make_judges
from layerscope.improving.pairs import SearchTexts, ranking_scores
from layerscope.improving.reader import Chosen, Fitted
from layerscope.improving.request import Run
from layerscope.improving.result import BeforeAfter, Improved, neighbor_table
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
)


@dataclass(frozen=True)
class Check:
    """The comparison of a way with today's by every measure, on queries that did not choose.

    `before` are today's values.
    """

    split: SplitScores
    decision: Decision
    before: dict[str, float]

    @property
    def is_better(self) -> bool:
        """Return whether the way leads today's by more than luck by the first measure."""
        return self.decision.chosen != self.decision.baseline

    def gain(self, name: str, place: int, other: int) -> Interval:
        """Return what one place gains over another by a measure."""
        count = len(self.split.scores.values) // len(self.before)
        start = list(self.before).index(name) * count
        decision = self.decision
        return self.split.claim(decision.rule, decision.chosen, start + other, start + place).gain


def improve_search(run: Run, texts: SearchTexts) -> Improved:
    """Choose how queries find documents, and make the model that was chosen."""
    run.reader.check_differ(run.sample.texts)
    examples = [*texts.queries[:100], *texts.documents[:100]]
    judges = make_judges(run.request.judge, None, run.reader, examples)
    if judges.encoder is None and not texts.paired.any():
        raise LayerscopeError(
            "a search is judged by a sentence encoder (judge='minilm-l6') or by pairs=: give one "
            "of them."
        )
    ways = make_ways(servable_grid(run.model, run.request.templates, ()))
    sides = read_sides(run, judges, texts, ways)
    measured = add_heads(run, judges, sides, measure_ways(run, sides, ways))
    outcome, way = decide_way(run, judges, sides, measured)
    return finish_search(run, judges, sides, measured, outcome, way)


def decide_way(run: Run, judges: Judges, sides: Sides, measured: Measured) -> tuple[Outcome, Way]:
    """Choose a way by half of the queries; keep today's unless the other half shows a gain."""
    layers = run.reader.layers
    budget = run.request.budget
    seed = run.request.seed
    choosing, checking = sides.texts.halves(seed)
    documents = [way.document for way in measured.ways]
    templates = list(dict.fromkeys(readout.template for readout in documents))
    tokens = run.reader.tokens(templates, sides.texts.documents[:200])
    costs = candidate_costs(run.reader, documents, tokens)
    candidates = make_candidates(measured.readouts, layers, costs)
    scores = score_ways(sides, measured.values, choosing, seed)
    make_claim = claim_of_any(scores)
    today = baseline_of(candidates)
    decision = decide(candidates, [scores], today, limits_by_judge(budget, stay=False), make_claim)
    checked = score_measures(sides, measured.values, checking, seed)
    is_forced = budget is not None and budget < 1
    last = (decision.chosen // len(layers) + 1) * len(layers) - 1
    check = check_way(checked, decision.chosen, last, today, is_forced, seed)
    count = int(sides.texts.paired[checking].sum()) or len(checking)
    if decision.chosen == today or check.is_better:
        outcome = describe(decision, candidates, scores, judges)
        place = decision.chosen
    else:
        only_today = scores.where(np.arange(len(candidates)) == today)
        decision = decide(candidates, [only_today], today, limits_by_judge(None), make_claim)
        outcome = describe(decision, candidates, scores, judges)
        reason = (
            f"on {count} queries that did not choose it, nothing is shown to be better than what "
            "you have"
        )
        outcome = replace(outcome, choice=replace(outcome.choice, reason=reason, abstained=True))
        place = last = today
    way = measured.ways[place // len(layers)]
    changes = {}
    for name, before in check.before.items():
        gain = check.gain(name, place, today)
        changes[name] = Change(before, before + gain.value, (gain.low, gain.high))
    readout_gain = check.gain(next(iter(changes)), last, today).value
    evidence = search_evidence(judges, sides, outcome.evidence, changes, readout_gain, count, way)
    if NDCG in changes and sides.encoded is not None and evidence.search is not None:
        ndcg, _ = ranking_scores(cosines_between(*sides.encoded), sides.texts.relevant)
        encoder_ndcg = float(np.nanmean(ndcg[checking]))
        evidence = replace(evidence, search=replace(evidence.search, own=encoder_ndcg))
    return replace(outcome, evidence=evidence), way


def check_way(
    checked: Mapping[str, Scores], place: int, last: int, today: int, is_forced: bool, seed: int
) -> Check:
    """Compare a place with today's by every measure; a forced one is taken whatever it gains.

    `last` is the place of the same way at the last layer.
    """
    scores = list(checked.values())
    count = len(scores[0].values)
    draws = np.concatenate([part.draws for part in scores if part.draws is not None])
    stacked = Scores(np.concatenate([part.values for part in scores]), draws)
    allowed = np.arange(len(draws)) == place
    compared = [i * count + other for i in range(len(scores)) for other in (place, last, today)]
    split = SplitScores.of(stacked, allowed, today, compared, seed)
    candidates = [Candidate((), blocked="" if may else "not chosen") for may in allowed]
    limits = Limits(lead=None if is_forced else split.lead)
    decision = decide(candidates, [stacked], today, limits, split.claim, split.noise)
    before = {name: float(part.values[today]) for name, part in checked.items()}
    return Check(split, decision, before)


def search_evidence(
    judges: Judges,
    sides: Sides,
    evidence: Evidence,
    changes: dict[str, Change],
    readout_gain: float,
    queries: int,
    way: Way,
) -> Evidence:
    """Return what the queries that did not choose say of the choice."""
    encoder = judges.encoder_name
    names = [f"{sides.texts.facts['pairs']['used']} pairs"] if NDCG in changes else []
    names += [f"agreement with {encoder}"] if encoder else []
    measure, change = next(iter(changes.items()))
    return replace(
        evidence,
        judge=" and ".join(names),
        score_name=measure if measure == NDCG else f"agreement with {encoder}",
        before=change.before,
        after=change.after,
        interval=change.interval,
        readout_gain=readout_gain,
        layer_gain=change.after - change.before - readout_gain,
        search=SearchEvidence(
            measures=changes,
            queries=queries,
            documents=len(sides.texts.documents),
            judge=encoder,
            own=None,
            prompts=way.prompts,
            readout=way.joined.name,
            query=way.query.name,
        ),
    )


def finish_search(
    run: Run, judges: Judges, sides: Sides, measured: Measured, outcome: Outcome, way: Way
) -> Improved:
    """Fit what was done to each side's vectors, and write the result."""
    layer = outcome.choice.layer
    query_fit, document_fit = fit_sides(run, sides, measured, way, layer)
    query = Chosen(run.reader, way.query, layer, query_fit)
    chosen = Chosen(run.reader, way.document, layer, document_fit)
    if not outcome.evidence.kept_default:
        chosen = replace(chosen, query=query)
    today = todays_reading(run)
    queries = BeforeAfter(
        sides.texts.queries,
        sides.queries.raw(Readout())[today.layer],
        query.transform(sides.queries.raw(way.query)[layer]),
    )
    documents = BeforeAfter(
        sides.texts.documents,
        sides.documents.raw(Readout())[today.layer],
        chosen.transform(sides.documents.raw(way.document)[layer]),
    )
    is_head = measured.heads is not None and way.document.centering == HEAD
    evidence = replace(
        outcome.evidence,
        teacher=measured.heads.teacher.describe() if is_head and measured.heads else None,
        texts_per_second=compare_speeds(judges, today.encode, chosen.encode, sides.texts.documents),
    )
    choice = replace(outcome.choice, readout=way.document.name)
    table = neighbor_table(queries, documents)
    outcome = Outcome(choice, evidence)
    return write_result(run, outcome, chosen, documents, table, notes=judges.notes)


def fit_sides(
    run: Run, sides: Sides, measured: Measured, way: Way, layer: int
) -> tuple[Fitted | None, Fitted | None]:
    """Return what is done to the vectors of queries and of documents."""
    if way.document.centering == "none":
        return None, None
    matrix = None
    if way.document.centering == HEAD and measured.heads and measured.prompted is not None:
        teachers = [measured.prompted]
        if sides.encoded is not None:
            teachers.append(np.concatenate([rows - rows.mean(0) for rows in sides.encoded]))
        matrix = Ridge(measured.heads.raw[layer], make_target(*teachers)).head().matrix
    fits = []
    for kind, side, readout in (
        ("queries", sides.queries, way.query),
        ("documents", sides.documents, way.document),
    ):
        facts = sides.texts.facts[kind]
        sample = replace(run.sample, total=facts["distinct"], name=facts["name"])
        fits.append(Fitted.of(sample, facts["read"], Head(side.mean(readout, layer), matrix)))
    return fits[0], fits[1]
