"""Read the candidates and score them: all templates on a part of the sample, the best on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.choose.decide import SECOND, over_budget
from layerscope.choose.judges.agreement import Neighborhoods, similarities
from layerscope.choose.judges.base import TEXTS
from layerscope.choose.judges.consistency import added_ranks, consistency_items, make_views
from layerscope.core.heads import LEAST_TEXTS
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.improving.candidates import (
    StoredCandidates,
    by_template,
    servable_grid,
    server_needs,
)
from layerscope.improving.choose import KEPT, SCREEN
from layerscope.improving.chosen import Chosen
from layerscope.improving.cost import ReadingCost, estimate_reading
from layerscope.improving.evidence import NeighborShares
from layerscope.improving.fit import encode_by_judge
from layerscope.improving.heads import READOUT as HEAD_READOUT
from layerscope.improving.heads import Heads, find_teacher, fit_heads
from layerscope.improving.judging import (
    Judges,
    append_rows,
    find_consensus,
    parts_of,
    prefers_plain_text,
)
from layerscope.improving.request import Run
from layerscope.improving.words import weak_judge_note

STUDENT_BUDGET = 0.5
"""The share of today's computation that a student takes, unless another budget is given."""


@dataclass(frozen=True)
class ReadCandidates:
    """Candidates whose texts are read, and what reading costs.

    `screened` has the best score of each template on a part of the sample, where there were many.
    """

    candidates: StoredCandidates
    cost: ReadingCost
    screened: dict[str, float]


@dataclass(frozen=True)
class Scored:
    """Candidates with their scores: of each source, and `total` of all together.

    `reference` has the neighbors that candidates should agree with, where such a source scores.
    """

    read: ReadCandidates
    sources: tuple[Scores, ...]
    total: Scores
    reference: Neighborhoods | None
    notes: tuple[str, ...] = ()

    @property
    def candidates(self) -> StoredCandidates:
        """Return the candidates that were scored."""
        return self.read.candidates


def read_candidates(run: Run, judges: Judges) -> ReadCandidates:
    """Encode the sample under the templates that are worth it; refuse a budget too small."""
    grid = servable_grid(run.model, run.request.templates, run.request.servers)
    cost = estimate_reading(judges, run.reader, grid, run.sample, run.bar)
    check_budget(run, cost.relative(run.reader, grid))
    screened: dict[str, float] = {}
    names = list(dict.fromkeys(readout.template for readout in grid))
    if len(names) > KEPT + 1 and len(run.sample.texts) > SCREEN:
        screened = _screen(run, judges, grid)
        prompts = [name for name in names if name != "plain"]
        prompts.sort(key=lambda name: -screened.get(name, -np.inf))
        remaining = {"plain", *prompts[:KEPT]}
        grid = [readout for readout in grid if readout.template in remaining]
    candidates = _read_texts(run, judges, grid, run.sample.texts)
    return ReadCandidates(candidates, cost, screened)


def check_budget(run: Run, costs: np.ndarray) -> None:
    """Refuse a budget that no candidate keeps."""
    budget = run.request.budget
    if run.request.trains:
        check_student_budget(run)
    if budget is not None and budget + 1e-9 < costs.min():
        raise over_budget(budget, float(costs.min()))


def check_student_budget(run: Run) -> float:
    """Return the budget of a student; refuse one that allows no block."""
    budget = run.request.budget or STUDENT_BUDGET
    if budget + 1e-9 < 1 / run.model.n_blocks:
        raise InvalidValueError(
            f"budget={budget:g} allows no block to train; one costs {1 / run.model.n_blocks:.2g}."
        )
    return budget


def score_candidates(run: Run, judges: Judges, read: ReadCandidates) -> Scored:
    """Score every layer under every readout by all judges."""
    candidates = read.candidates
    sources, reference = _score(run, judges, candidates)
    total = judges.combine(sources)
    notes = list(judges.notes)
    by_encoder_alone = judges.encoder is not None and judges.labels is None
    if by_encoder_alone and prefers_plain_text(total, candidates.readouts):
        assert judges.encoder is not None
        notes.append(weak_judge_note(judges.encoder.name))
    return Scored(read, sources, total, reference, tuple(notes))


def second_opinion(run: Run, candidates: StoredCandidates, template: str) -> Scores:
    """Score how well the readouts of one template recognize texts by their parts.

    A part of the sample is read. The scores of all other readouts are undefined.
    """
    texts = list(run.sample.texts[: parts_of(len(run.sample.texts))])
    views = {TEXTS: texts, **make_views(texts, run.request.seed)}
    rows = [
        row
        for row, readout in enumerate(candidates.readouts)
        if readout.template == template and readout.centering != HEAD
    ]
    readouts = [candidates.readouts[row] for row in rows]
    label = f"a second opinion: parts of {len(texts)} texts under {template}"
    every = [text for view in views.values() for text in view]
    run.reader.read(by_template(readouts), list(dict.fromkeys(every)), run.bar, label)
    parts = StoredCandidates(run.reader.spaces, readouts, candidates.layers, views)
    scores = added_ranks(consistency_items(parts), run.request.seed)
    assert scores.draws is not None
    count = len(candidates.layers)
    places = np.add.outer(np.array(rows) * count, np.arange(count)).ravel()
    values = np.full(len(candidates.readouts) * count, np.nan)
    draws = np.full((len(values), scores.draws.shape[1]), np.nan)
    values[places] = scores.values
    draws[places] = scores.draws
    return Scores(values, draws, scores.source, SECOND)


def _screen(run: Run, judges: Judges, grid: Sequence[Readout]) -> dict[str, float]:
    """Return the best score of each template on a part of the sample."""
    candidates = _read_texts(run, judges, grid, run.sample.texts[:SCREEN])
    sources, _ = _score(run, judges, candidates)
    total = judges.combine(sources)
    best: dict[str, float] = {}
    for readout, row in zip(grid, total.values.reshape(len(grid), -1), strict=True):
        if np.isfinite(row).any():
            top = float(np.nanmax(row))
            best[readout.template] = max(best.get(readout.template, -np.inf), top)
    return best


def _read_texts(
    run: Run, judges: Judges, readouts: Sequence[Readout], texts: Sequence[str]
) -> StoredCandidates:
    """Encode texts, and what else the judges need, under the templates of some readouts."""
    views = judges.views(texts, run.request.seed)
    kinds = by_template(readouts)
    parts = " and their parts" if judges.reads_parts else ""
    label = f"{run.model.name} reads {len(texts)} texts{parts} under {len(kinds)} templates"
    every = [text for view in views.values() for text in view]
    run.reader.read(kinds, list(dict.fromkeys(every)), run.bar, label)
    return StoredCandidates(run.reader.spaces, readouts, run.reader.layers, views)


def _score(
    run: Run, judges: Judges, candidates: StoredCandidates
) -> tuple[tuple[Scores, ...], Neighborhoods | None]:
    """Return the scores of each source, and the neighbors that candidates should agree with."""
    seed = run.request.seed
    count = len(candidates.readouts)
    reference = None
    encoded = encode_by_judge(run, judges, candidates.texts)
    if encoded is not None:
        reference = Neighborhoods.of(similarities(encoded))
    elif judges.is_model_alone:
        run.bar.begin("comparing readouts by parts of texts|readouts", count)
        reference = find_consensus(candidates.watched(run.bar.advance), seed)
    run.bar.begin("judging|readouts", count)
    return judges.score(candidates.watched(run.bar.advance), reference, seed), reference


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
    readouts = [*scored.candidates.readouts, HEAD_READOUT]
    candidates = scored.candidates.only(readouts, heads)
    run.bar.begin("heads|readouts", 1)
    if judges.custom is not None:  # its scores may depend on what else is scored
        sources = judges.score(candidates, scored.reference, request.seed)
    else:
        alone = candidates.only([HEAD_READOUT])
        more = judges.score(alone, scored.reference, request.seed)
        sources = tuple(append_rows(*pair) for pair in zip(scored.sources, more, strict=True))
    run.bar.advance(1)
    return replace(
        scored,
        read=replace(scored.read, candidates=candidates),
        sources=sources,
        total=judges.combine(sources),
    )


def _fit_heads(run: Run, judges: Judges, scored: Scored) -> tuple[Heads | None, str]:
    """Return a head at every layer, or the reason why there is none."""
    candidates = scored.candidates
    count = len(run.sample.texts)
    if count < LEAST_TEXTS:
        return None, f"{count} texts are too few, it takes {LEAST_TEXTS}"
    encoder = "" if judges.encoder is None else judges.encoder.name
    teacher = find_teacher(scored.total, candidates.readouts, candidates.layers, encoder)
    if teacher is None:
        return None, "no prompt that could teach beats today's"
    raw = np.stack([candidates.raw(Readout(), layer) for layer in candidates.layers])
    heads = fit_heads(teacher, raw, candidates.raw(teacher.readout, teacher.layer))
    return heads, "the prompt that should teach says the same of all texts"


def neighbor_shares(
    judges: Judges, scored: Scored, today: Chosen, chosen: Chosen
) -> NeighborShares | None:
    """Return the shares of the right nearest neighbors that two readings find.

    None where no encoder and no consensus says which are right.
    """
    reference = scored.reference
    if reference is None:
        return None
    shares = []
    for reading in (today, chosen):
        place = list(scored.candidates.layers).index(reading.layer)
        cosines = scored.candidates.similarity(reading.readout, place)
        if cosines is None:
            return None
        shares.append(float(reference.overlap(cosines.to(reference.near.device)).mean()))
    return NeighborShares("" if judges.encoder is None else judges.encoder.name, *shares)
