"""Read the candidates and score them: all templates on a part of the sample, the best on all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.choose.decide import SECOND, over_budget
from layerscope.choose.judges.base import TEXTS, Judge
from layerscope.choose.judges.consistency import added_ranks, consistency_items, make_views
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving.candidates import StoredCandidates, servable_grid, server_needs
from layerscope.improving.decision import candidate_costs
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, find_teacher, fit_heads
from layerscope.improving.judging import Agreement, Judges
from layerscope.improving.request import Run
from layerscope.progress import announce

SCREEN = 200
"""Texts on which all templates are compared; the best of them and the default are then compared on
the whole sample."""

KEPT = 1
"""Templates that are compared on the whole sample, besides the default's."""

PARTS_OF = 100
"""Texts whose parts are read for a second opinion, at most; and at most a fifth of the sample."""

STUDENT_BUDGET = 0.5
"""The share of today's computation that a student takes, unless another budget is given."""


@dataclass(frozen=True)
class Scored:
    """Candidates with their scores: of each judge, and `total` of all together.

    `tokens` are the mean tokens per text under each template, and `spent` the tokens that the
    choice reads.
    """

    candidates: StoredCandidates
    judges: tuple[Judge, ...]
    sources: tuple[Scores, ...]
    total: Scores
    tokens: dict[str, float]
    spent: float
    notes: tuple[str, ...] = ()

    @property
    def agreement(self) -> Agreement | None:
        """Return the judge with reference neighbors, if there is one."""
        for judge in self.judges:
            if isinstance(judge, Agreement):
                return judge
        return None


def score_candidates(run: Run, judges: Judges) -> Scored:
    """Read and score every layer under the readouts that are worth it.

    All templates are compared on a part of many texts, the best ones on all. A budget that is too
    small is refused before.
    """
    reader = run.reader
    texts = run.sample.texts
    grid = servable_grid(run.model, run.request.templates, run.request.servers)
    names = list(dict.fromkeys(readout.template for readout in grid))
    tokens = reader.tokens(names, texts[:SCREEN])
    check_budget(run, candidate_costs(reader, grid, tokens))
    announce(
        run.bar,
        f"{len(grid) * len(reader.layers)} layers × readouts of {run.model.name} on {len(texts)} "
        f"of {run.sample.total} texts, judged by {judges.name}",
    )
    spent = _count_tokens(judges, tokens, len(texts))
    if len(names) > KEPT + 1 and len(texts) > SCREEN:
        screened = _read_and_score(run, judges, grid, texts[:SCREEN])[-1]
        best = _best_templates(screened, grid)
        grid = [readout for readout in grid if readout.template in best]
    candidates, opened, sources, total = _read_and_score(run, judges, grid, texts)
    notes = judges.notes
    is_by_encoder = judges.encoder is not None and judges.labels is None
    if is_by_encoder and prefers_plain_text(total, grid):
        note = (
            f"{judges.encoder_name} agrees more with the plain text than with any prompt. Judges "
            "that go by words rather than by meaning do that, and their choice is worth less; long "
            "documents are another cause. Compare with judge='none'."
        )
        notes = (*notes, note)
    return Scored(candidates, opened, sources, total, tokens, spent, notes)


def _count_tokens(judges: Judges, tokens: dict[str, float], count: int) -> float:
    """Return about how many tokens a choice on `count` texts reads."""
    longest = max(tokens.values())
    screened = SCREEN if len(tokens) > KEPT + 1 and count > SCREEN else count
    spent = screened * sum(tokens.values())
    spent += (count - screened) * (tokens["plain"] + KEPT * longest)
    if judges.reads_parts:
        spent *= 2.7  # a text, most of it, and its halves
    if judges.takes_second_opinion:
        spent += parts_of(count) * 1.7 * longest
    return spent


def check_budget(run: Run, costs: np.ndarray) -> None:
    """Refuse a budget that no candidate keeps."""
    budget = run.request.budget
    if run.request.trains:
        student_budget(run)
    if budget is not None and budget + 1e-9 < costs.min():
        raise over_budget(budget, float(costs.min()))


def student_budget(run: Run) -> float:
    """Return the budget of a student; refuse one that allows no block."""
    budget = run.request.budget or STUDENT_BUDGET
    if budget + 1e-9 < 1 / run.model.n_blocks:
        raise InvalidValueError(
            f"budget={budget:g} allows no block to train; one costs {1 / run.model.n_blocks:.2g}."
        )
    return budget


def _best_templates(scores: Scores, grid: Sequence[Readout]) -> set[str]:
    """Return the plain template and the prompts with the best scores."""
    tops = np.where(scores.defined, scores.values, -np.inf).reshape(len(grid), -1).max(axis=1)
    best: dict[str, float] = {}
    for readout, top in zip(grid, tops, strict=True):
        if readout.template != "plain":
            best[readout.template] = max(best.get(readout.template, -np.inf), float(top))
    prompts = sorted(best, key=lambda name: -best[name])
    return {"plain", *prompts[:KEPT]}


def prefers_plain_text(scores: Scores, readouts: Sequence[Readout]) -> bool:
    """Return whether the plain text scores higher than every prompt.

    Most weak judges prefer the plain text, good ones hardly ever.
    """
    rows = np.where(scores.defined, scores.values, -np.inf).reshape(len(readouts), -1)
    is_plain = np.array([readout.template == "plain" for readout in readouts])
    best_prompt = rows[~is_plain].max(initial=-np.inf)
    return bool(np.isfinite(best_prompt) and rows[is_plain].max() > best_prompt)


def add_heads(run: Run, judges: Judges, scored: Scored) -> Scored:
    """Fit a head at every layer, taught by the best prompt, and score it like the others.

    Without a teacher, or with servers that open no head, the candidates stay as they are.
    """
    request = run.request
    problems, _ = server_needs(run.model, HEAD_READOUT, request.servers)
    if problems:
        if request.trains:
            raise LayerscopeError(f"a trained model has a head. {'; '.join(problems)}.")
        return scored
    heads, reason = _fit_heads(run, judges, scored)
    if heads is None:
        if request.trains:
            raise LayerscopeError(
                f"{run.model.name} cannot be trained on these texts: {reason}. Leave out train=."
            )
        if request.budget is None:
            return scored
        return replace(scored, notes=(*scored.notes, f"no head was fitted: {reason}."))
    candidates = scored.candidates.only([*scored.candidates.readouts, HEAD_READOUT], heads)
    if judges.custom is not None:  # its scores may depend on what else is scored
        sources = _score(run, scored.judges, candidates)
    else:
        head_scores = _score(run, scored.judges, candidates.only([HEAD_READOUT], heads))
        pairs = zip(scored.sources, head_scores, strict=True)
        sources = tuple(append_scores(scores, further) for scores, further in pairs)
    total = judges.combine(sources)
    return replace(scored, candidates=candidates, sources=sources, total=total)


def _fit_heads(run: Run, judges: Judges, scored: Scored) -> tuple[Heads | None, str]:
    """Return a head at every layer, or the reason why there is none."""
    candidates = scored.candidates
    count = len(run.sample.texts)
    if count < LEAST_TEXTS:
        return None, f"{count} texts are too few, it takes {LEAST_TEXTS}"
    teacher = find_teacher(
        scored.total, candidates.readouts, candidates.layers, judges.encoder_name
    )
    if teacher is None:
        return None, "no prompt that could teach beats today's"
    prompted = candidates.raw(teacher.readout)[teacher.layer]
    heads = fit_heads(teacher, candidates.raw(Readout()), prompted)
    return heads, "the prompt that should teach says the same of all texts"


def append_scores(scores: Scores, further: Scores) -> Scores:
    """Return scores with those of further candidates after them."""
    draws = None
    if scores.draws is not None and further.draws is not None:
        draws = np.concatenate([scores.draws, further.draws])
    return replace(scores, values=np.concatenate([scores.values, further.values]), draws=draws)


def second_opinion(run: Run, candidates: StoredCandidates, template: str) -> Scores:
    """Score how well the readouts of one template recognize texts by their parts.

    A part of the sample is read. The scores of all other readouts are undefined.
    """
    texts = list(run.sample.texts[: parts_of(len(run.sample.texts))])
    views = {TEXTS: texts, **make_views(texts, run.request.seed)}
    is_read = [
        readout.template == template and readout.centering != HEAD
        for readout in candidates.readouts
    ]
    readouts = [
        readout for readout, is_used in zip(candidates.readouts, is_read, strict=True) if is_used
    ]
    label = f"a second opinion: parts of {len(texts)} texts under {template}|readings"
    _read_views(run, readouts, views, label)
    candidates_in_parts = StoredCandidates(run.reader, readouts, views)
    scores = added_ranks(consistency_items(candidates_in_parts), run.request.seed)
    assert scores.draws is not None
    places = np.repeat(is_read, len(candidates.layers))
    values = np.full(len(places), np.nan)
    draws = np.full((len(places), scores.draws.shape[1]), np.nan)
    values[places] = scores.values
    draws[places] = scores.draws
    return Scores(values, draws, scores.source, SECOND)


def parts_of(count: int) -> int:
    """Return how many of the texts are read in parts for a second opinion."""
    return min(count, PARTS_OF, max(20, count // 5))


def _read_and_score(
    run: Run, judges: Judges, readouts: Sequence[Readout], texts: Sequence[str]
) -> tuple[StoredCandidates, tuple[Judge, ...], tuple[Scores, ...], Scores]:
    """Encode texts under readouts; return the candidates, opened judges, their scores and the total."""
    views = judges.views(texts, run.request.seed)
    count = len({readout.template for readout in readouts})
    suffix = " and their parts" if judges.reads_parts else ""
    label = f"{run.model.name} reads {len(texts)} texts{suffix} under {count} templates|readings"
    _read_views(run, readouts, views, label)
    candidates = StoredCandidates(run.reader, readouts, views)
    opened = judges.open(candidates, run.request.seed, run.bar)
    sources = _score(run, opened, candidates)
    return candidates, opened, sources, judges.combine(sources)


def _read_views(
    run: Run, readouts: Sequence[Readout], views: Mapping[str, Sequence[str]], label: str
) -> None:
    texts = [text for view in views.values() for text in view]
    run.reader.read(readouts, list(dict.fromkeys(texts)), run.bar, label)


def _score(run: Run, judges: Sequence[Judge], candidates: StoredCandidates) -> tuple[Scores, ...]:
    """Return the scores of each judge."""
    run.bar.begin("scoring|judges", len(judges))
    scores = []
    for judge in judges:
        scores.append(judge.judge(candidates, seed=run.request.seed))
        run.bar.advance(1)
    return tuple(scores)
