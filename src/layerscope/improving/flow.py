"""The steps of an improvement, one function each, and the values between them.

`start.py` has checked the request and drawn the sample. Then:

1. `make_judges` opens the sources that score candidates.
2. `score_candidates` reads texts and scores every layer under every readout: all templates on a
   part, the best ones on the whole sample.
3. `add_heads` fits a head at every layer, and scores it like the others.
4. `decide_reading` chooses among the candidates; of a search, queries that did not choose then say
   whether the choice is better (`check_choice`).
5. `fit_reading` fits the mean or the head of the choice. `train_blocks` trains a student instead.
6. `finish` measures the result beside the baseline, and exports it.

A search takes the same steps: its candidates have a readout for queries as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from layerscope.choose import (
    Candidate,
    Decision,
    Limits,
    SplitScores,
    claim_of_any,
    decide,
    decide_by_judge,
)
from layerscope.choose.choice import Choice
from layerscope.choose.consistency import added_ranks, consistency_items, make_views
from layerscope.choose.decide import LEAD, SECOND, LabelCheck, limits_by_judge, over_budget
from layerscope.choose.judges import TEXTS
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores
from layerscope.data.records import lack_words
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving.candidates import (
    QUERIES,
    Chosen,
    Run,
    StoredCandidates,
    baseline_of,
    is_writable,
    make_candidates,
    notes_on_reading,
    pair_readouts,
    servable_readouts,
    server_needs,
    template_of,
)
from layerscope.improving.fit import (
    FittedChoice,
    find_teacher,
    fit_heads,
    fit_reading,
    train_blocks,
)
from layerscope.improving.judging import (
    Agreement,
    CheckedJudge,
    Judges,
    Scored,
    make_judges,
)
from layerscope.improving.result import (
    COLUMNS,
    BeforeAfter,
    Evidence,
    Improved,
    Outcome,
    describe,
    make_manifest,
    map_of_choice,
    neighbor_table,
)
from layerscope.improving.words import (
    NO_WORDS,
    card_words,
    choice_reason,
    training_outcome,
)
from layerscope.maps import LayerMap
from layerscope.progress import announce

SCREEN = 200
"""Texts on which all templates are compared; the best of them and the default are then compared on
the whole sample."""

SCREENED_BEST = 1
"""Templates that are compared on the whole sample, besides the default's."""

PARTS_OF = 100
"""Texts whose parts are read for a second opinion, at most; and at most a fifth of the sample."""

STUDENT_BUDGET = 0.5
"""The share of the baseline's computation that a student takes, unless another budget is given."""


def improve_texts(run: Run) -> Improved:
    """Choose how a language model is read on texts, and make the model that was chosen."""
    request = run.request
    texts = run.sample.texts
    run.reader.check_differ(texts)
    judges = make_judges(run)
    if judges.is_model_alone and lack_words(texts):
        if request.train is not None or request.budget is not None:
            raise LayerscopeError(f"train= and budget= need a judge, and {NO_WORDS}")
        return keep_reading(run, NO_WORDS, Readout())
    scored = add_heads(run, judges, score_candidates(run, judges))
    if request.train is not None:
        outcome = decide_blocks(run, judges, scored)
        fitted = train_blocks(run, judges, scored, outcome, baseline_reading(run))
        training = fitted.training
        if training is None or training.is_better:
            return finish(run, scored, fitted)
        note = (
            "training did not help, and what was best before it is handed over: "
            f"{training_outcome(training)}."
        )
        scored = replace(scored, notes=(*scored.notes, note))
    outcome = decide_reading(run, judges, scored)
    return finish(run, scored, fit_reading(run, judges, scored, outcome))


def baseline_reading(run: Run) -> Chosen:
    """Return the baseline: the last layer, the mean of its tokens."""
    return Chosen(run.reader, Readout(), run.model.n_blocks)


# Read and score


def score_candidates(run: Run, judges: Judges) -> Scored:
    """Read and score every layer under the readouts that are worth it.

    All templates are compared on a part of many texts, the best ones on all. A budget that is too
    small is refused before.
    """
    model = run.model
    texts = run.sample.texts
    grid = servable_readouts(run)
    pairs: list[tuple[Readout | None, Readout]] = [(None, readout) for readout in grid]
    if run.search is not None:
        pairs = [*pair_readouts(grid)]
    names = list(dict.fromkeys(readout.template for _, readout in pairs))
    tokens = run.reader.tokens(names, texts[:SCREEN])
    candidates = make_candidates(model, pairs, tokens)
    smallest = min(candidate.cost for candidate in candidates)
    budget = run.request.budget
    if run.request.train is not None:
        student_budget(run)
    if budget is not None and budget + 1e-9 < smallest:
        raise over_budget(budget, smallest)
    announce(
        run.bar,
        f"{len(candidates)} layers × readouts of {model.name} on {len(texts)} of "
        f"{run.sample.total} texts, judged by {judges.name}",
    )
    if run.search is None and len(names) > SCREENED_BEST + 1 and len(texts) > SCREEN:
        total = _read_and_score(run, judges, candidates, texts[:SCREEN], tokens).total
        best = _best_templates(total, candidates)
        candidates = [item for item in candidates if template_of(item) in best]
    scored = _read_and_score(run, judges, candidates, texts, tokens)
    return replace(scored, notes=judges.notes)


def student_budget(run: Run) -> float:
    """Return the budget of a student; refuse one that allows no block."""
    budget = run.request.budget or STUDENT_BUDGET
    if budget + 1e-9 < 1 / run.model.n_blocks:
        raise InvalidValueError(
            f"budget={budget:g} allows no block to train; one costs {1 / run.model.n_blocks:.2g}."
        )
    return budget


def _read_and_score(
    run: Run,
    judges: Judges,
    candidates: Sequence[Candidate],
    texts: Sequence[str],
    tokens: dict[str, float],
) -> Scored:
    """Encode texts under the templates of candidates, and score these by every judge."""
    stored = StoredCandidates(run.reader, candidates, judges.views(texts, run.request.seed))
    count = len({template_of(candidate) for candidate in candidates})
    suffix = " and their parts" if judges.reads_parts else ""
    stored.read(
        run.bar,
        f"{run.model.name} reads {len(texts)} texts{suffix} under {count} templates|readings",
    )
    opened = judges.open(stored, run.request.seed, run.bar)
    run.bar.begin("scoring|judges", len(opened))
    sources = []
    for judge in opened:
        sources.append(judge.judge(stored, seed=run.request.seed))
        run.bar.advance(1)
    total = judges.combine(sources)
    return Scored(stored, opened, tuple(sources), total, tokens)


def _best_templates(scores: Scores, candidates: Sequence[Candidate]) -> set[str]:
    """Return the plain template and the prompts with the best scores."""
    best: dict[str, float] = {}
    for candidate, value in zip(candidates, scores.values, strict=True):
        name = template_of(candidate)
        if name != "plain":
            best[name] = max(best.get(name, -np.inf), np.nan_to_num(value, nan=-np.inf))
    prompts = sorted(best, key=lambda name: -best[name])
    return {"plain", *prompts[:SCREENED_BEST]}


# Heads


def add_heads(run: Run, judges: Judges, scored: Scored) -> Scored:
    """Fit a head at every layer, taught by the best prompt, and score it like the others.

    Without a teacher, or with servers that open no head, the candidates stay as they are.
    """
    request = run.request
    stored = scored.candidates
    problems, _ = server_needs(run, Readout(), head=True)
    if problems:
        if request.train is not None:
            raise LayerscopeError(f"a trained model has a head. {'; '.join(problems)}.")
        return scored
    query = None if run.search is None else Readout()
    plain = make_candidates(run.model, [(query, Readout())], scored.tokens)
    teacher = find_teacher(scored.total, stored.candidates, judges.encoder_name)
    heads = None if teacher is None else fit_heads(teacher, stored, plain)
    if heads is None:
        if request.train is not None:
            raise LayerscopeError(
                f"{run.model.name} cannot be trained on these texts: no prompt that could teach "
                "beats the baseline. Leave out train=."
            )
        return scored
    added = [replace(candidate, transform="head") for candidate in plain]
    candidates = replace(stored, candidates=[*stored.candidates, *added], heads=heads)
    sources = []
    for judge, scores in zip(scored.judges, scored.sources, strict=True):
        if isinstance(judge, CheckedJudge):  # its scores may depend on what else is scored
            sources.append(judge.judge(candidates, seed=request.seed))
        else:
            further = judge.judge(replace(candidates, candidates=added), seed=request.seed)
            sources.append(append_scores(scores, further))
    total = judges.combine(sources)
    return replace(scored, candidates=candidates, sources=tuple(sources), total=total)


def append_scores(scores: Scores, further: Scores) -> Scores:
    """Return scores with those of further candidates after them."""
    draws = None
    if scores.draws is not None and further.draws is not None:
        draws = np.concatenate([scores.draws, further.draws])
    return replace(scores, values=np.concatenate([scores.values, further.values]), draws=draws)


# Decide


def decide_reading(run: Run, judges: Judges, scored: Scored) -> Outcome:
    """Choose a candidate that can be exported."""
    candidates = scored.candidates.candidates
    allowed = np.array([is_writable(run, candidate) for candidate in candidates])
    scores = scored.total.where(allowed)
    budget = run.request.budget
    baseline = baseline_of(candidates)
    if run.search is not None:
        limits = limits_by_judge(budget, stay=False)
        decision = decide(candidates, [scores], baseline, limits, claim_of_any(scores))
        return check_choice(run, judges, scored, decision)
    usable = scores.defined & np.array([item.cost <= (budget or np.inf) for item in candidates])
    candidates = block_unsuited(judges, candidates, scored.tokens["plain"], usable)

    def second_opinion(template: str) -> Scores:
        return score_parts(run, candidates, template)

    check = None
    if judges.labels is not None and len(scored.sources) > 1:
        check = LabelCheck(scored.sources[0], len(judges.labels))
    decision = decide_by_judge(
        candidates,
        scores,
        baseline,
        budget,
        second_opinion if judges.takes_second_opinion else None,
        # the model's own consistency has no measure of quality: its gain has to be shown
        None if judges.is_model_alone else LEAD,
        check,
    )
    return describe(decision, candidates, scores, judges)


def block_unsuited(
    judges: Judges, candidates: Sequence[Candidate], tokens: float, usable: np.ndarray
) -> list[Candidate]:
    """Block candidates that are not suited to the texts, unless no other is usable."""
    suited = np.array([judges.eligible(candidate, tokens) for candidate in candidates])
    if not (suited & usable).any():
        return list(candidates)
    return [
        candidate if suits else replace(candidate, blocked="not suited to the texts")
        for candidate, suits in zip(candidates, suited, strict=True)
    ]


def score_parts(run: Run, candidates: Sequence[Candidate], template: str) -> Scores:
    """Score how well the readouts of one template recognize texts by their parts.

    A part of the sample is read. The scores of all other candidates are undefined.
    """
    texts = list(run.sample.texts[: parts_of(len(run.sample.texts))])
    views = {TEXTS: texts, **make_views(texts, run.request.seed)}
    is_read = np.array(
        [template_of(item) == template and item.transform == "none" for item in candidates]
    )
    read = [item for item, is_used in zip(candidates, is_read, strict=True) if is_used]
    stored = StoredCandidates(run.reader, read, views)
    stored.read(run.bar, f"a second opinion: parts of {len(texts)} texts under {template}|readings")
    scores = added_ranks(consistency_items(stored), run.request.seed)
    assert scores.draws is not None
    values = np.full(len(is_read), np.nan)
    draws = np.full((len(is_read), scores.draws.shape[1]), np.nan)
    values[is_read] = scores.values
    draws[is_read] = scores.draws
    return Scores(values, draws, scores.source, SECOND)


def parts_of(count: int) -> int:
    """Return how many of the texts are read in parts for a second opinion."""
    return min(count, PARTS_OF, max(20, count // 5))


def check_choice(run: Run, judges: Judges, scored: Scored, decision: Decision) -> Outcome:
    """Compare the choice of a search with the baseline's on queries that did not choose.

    Unless they show a gain, or a budget forces one to choose, the baseline stays.
    """
    search = run.search
    assert search is not None
    stored = scored.candidates
    baseline = decision.baseline
    places = list(dict.fromkeys([baseline, decision.chosen]))
    compared = [stored.candidates[place] for place in places]
    _, checking = search.halves(run.request.seed)
    judge = judges.measures(search, checking, run.bar)[0]
    scores = judge.judge(replace(stored, candidates=compared), seed=run.request.seed)
    is_forced = run.request.budget is not None and run.request.budget < 1
    check = decide_on_others(scores, is_forced, run.request.seed)
    count = int(search.paired[checking].sum()) or len(checking)
    if decision.chosen != baseline and check.chosen == check.baseline:
        reason = (
            f"on {count} queries that did not choose it, nothing is shown to be better than what "
            "you have"
        )
        decision = replace(decision, chosen=baseline, weak=reason)
    outcome = describe(decision, stored.candidates, scored.total, judges)
    claim = check.claim
    query = replace(outcome.candidate, readout=outcome.candidate.query, query=None)
    evidence = replace(
        outcome.evidence,
        before=claim.before,
        after=claim.before + claim.gain.value,
        interval=(claim.gain.low, claim.gain.high),
        queries=count,
        query=query.readout_name,
    )
    return replace(outcome, evidence=evidence)


def decide_on_others(scores: Scores, is_forced: bool, seed: int) -> Decision:
    """Compare the last candidate with the first on items that did not choose it.

    It has to lead by more than luck; a forced one is taken whatever it gains.
    """
    count = len(scores.values)
    allowed = np.arange(count) == count - 1
    split = SplitScores.of(scores, allowed, 0, range(count), seed)
    candidates = [Candidate((), blocked="" if may else "not chosen") for may in allowed]
    limits = Limits(lead=None if is_forced else split.lead)
    return decide(candidates, [scores], 0, limits, split.claim, split.noise)


def decide_blocks(run: Run, judges: Judges, scored: Scored) -> Outcome:
    """Choose the head on as many blocks as the budget of a student allows."""
    candidates = scored.candidates.candidates
    budget = student_budget(run)
    costs = np.array([candidate.cost for candidate in candidates])
    is_head = np.array([item.transform == "head" and item.layer > 0 for item in candidates])
    allowed = is_head & (costs <= budget + 1e-9) & scored.total.defined
    if not allowed.any():
        raise LayerscopeError("no layer within the budget can be trained.")
    largest = scored.total.where(allowed & (costs == costs[allowed].max()))
    decision = decide(
        candidates,
        [largest],
        baseline_of(candidates),
        limits_by_judge(budget, stay=False),
        claim_of_any(scored.total),
    )
    return describe(decision, candidates, scored.total, judges)


# Finish


def finish(run: Run, scored: Scored, fitted: FittedChoice) -> Improved:
    """Measure the result beside the baseline, and export it where a folder is wanted."""
    stored = scored.candidates
    texts = run.sample.texts
    chosen = fitted.chosen
    training = fitted.training
    candidate = fitted.outcome.candidate
    baseline = stored.candidates[baseline_of(stored.candidates)]
    choice = fitted.outcome.choice
    evidence = replace(fitted.outcome.evidence, teacher=fitted.teacher)
    if training is None:
        after = chosen.transform(stored.raw(candidate))
        evidence = replace(evidence, neighbors=neighbor_shares(scored, candidate))
    else:
        after = chosen.encode(texts)
        choice = replace(choice, before=training.baseline, after=training.student)
        evidence = replace(
            evidence,
            score_name="agreement with the teacher",
            before=training.baseline,
            after=training.student,
            interval=training.over_baseline,
            training=training,
        )
    sampled = BeforeAfter(texts, stored.raw(baseline), after)
    neighbors = neighbor_table(sampled)
    if run.search is not None:
        query = chosen.query or chosen
        vectors = query.transform(stored.raw(candidate, QUERIES))
        queries = BeforeAfter(run.search.queries, stored.raw(baseline, QUERIES), vectors)
        neighbors = neighbor_table(queries, sampled)
    trained = None if training is None else after
    return write_result(
        run,
        replace(fitted.outcome, choice=choice, evidence=evidence),
        chosen,
        sampled,
        neighbors,
        map_of_choice(run, stored, baseline, candidate, trained),
        (*scored.notes, *fitted.notes),
    )


def keep_reading(run: Run, reason: str, readout: Readout) -> Improved:
    """Return the baseline, where nothing is judged."""
    model = run.model
    texts = run.sample.texts
    candidates = make_candidates(model, [(None, readout)], {"plain": 1.0})
    stored = StoredCandidates(run.reader, candidates, {TEXTS: texts})
    stored.read(run.bar, f"{model.name}|readings")
    last = candidates[-1]
    choice = Choice(
        model.n_blocks,
        readout.name,
        tied=(model.n_blocks,),
        rule="improve",
        layers=model.n_blocks,
        reason=reason,
        abstained=True,
        table=pd.DataFrame(columns=COLUMNS),
    )
    sampled = BeforeAfter(texts, stored.raw(last), stored.raw(last))
    return write_result(
        run,
        Outcome(choice, Evidence("none was asked", kept_default=True), last),
        Chosen(run.reader, readout, model.n_blocks),
        sampled,
        neighbor_table(sampled),
        map_of_choice(run, stored, last, last),
    )


def neighbor_shares(scored: Scored, candidate: Candidate) -> tuple[float, float] | None:
    """Return the shares of the right nearest neighbors that the baseline and another find.

    None where no encoder and no consensus says which are right.
    """
    stored = scored.candidates
    references = [judge.reference for judge in scored.judges if isinstance(judge, Agreement)]
    if not references:
        return None
    shares = []
    for item in (stored.candidates[baseline_of(stored.candidates)], candidate):
        similarity = stored.similarity(item)
        if similarity is None:
            return None
        near = similarity.to(references[0].near.device)
        shares.append(float(references[0].overlap(near).mean()))
    return shares[0], shares[1]


def write_result(
    run: Run,
    outcome: Outcome,
    chosen: Chosen,
    sampled: BeforeAfter,
    neighbors: pd.DataFrame,
    layer_map: LayerMap | None,
    notes: Sequence[str] = (),
) -> Improved:
    """Return the result, written and verified where the request names a folder."""
    request = run.request
    evidence = outcome.evidence
    choice = replace(
        outcome.choice,
        model=run.model.name,
        reason=choice_reason(outcome.choice, evidence),
        warnings=(*notes, *notes_on_reading(run, chosen.readout)),
        metric=evidence.score_name,
        identity=run.model.identity,
        max_length=run.reader.max_length,
        unit_length=True,
    )
    if not request.texts:
        neighbors = neighbors.iloc[:0]
        layer_map = None if layer_map is None else layer_map.without_texts()
    _, formats = server_needs(run, chosen.readout, outcome.candidate.transform == "head")
    result = Improved(
        choice,
        choice.table,
        neighbors,
        make_manifest(run, choice, evidence, chosen),
        sampled=sampled,
        chosen=replace(chosen, formats=tuple(formats)),
        card=card_words(run.sample.name, choice, request.texts),
    )
    result._map = layer_map
    if request.out is not None:
        run.bar.begin(f"writing {request.out}|folder", 1)
        result.save(request.out, request.overwrite)
        run.bar.advance(1)
    return result
