"""Make a sentence encoder faster: search, refit, measure, decide, write.

The texts are divided once: the search and the fit read some, the agreement is measured on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from layerscope.blocks.encoder import Batch, Encoder, Variant
from layerscope.blocks.refit import BlockKind, find_kind, refit
from layerscope.blocks.result import FasterEncoder, MadeEncoder
from layerscope.blocks.search import (
    Step,
    TextSet,
    choose_blocks,
    measure_agreement,
    search,
    shared_neighbors,
)
from layerscope.blocks.train import TrainedBlocks, TrainRequest, train_blocks
from layerscope.blocks.words import AGREEMENT, RANKING
from layerscope.choose import Candidate, Decision, Limits, Scores, decide
from layerscope.choose.label_scores import LabelMeasure
from layerscope.choose.labels import Labeled
from layerscope.core.statistics import bootstrap_weights
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.progress import Progress
from layerscope.version import VERSION

KEEP = 0.95
"""The agreement that a choice without a limit keeps: with it five tasks kept 99 to 102 % of their
scores (`benchmarks/results/blocks.md`)."""

SEARCHED = 200
CHECKED = 500
MOST_TOKENS = 60_000
LEAST_CHECKED = 20
TRAINED_SHARE = 0.5
_TIMED = 128
_DRAWS = 1000
WEIGHTS = {"none": "as they are", "refit": "refitted", "train": "trained"}
"""What was done to the weights of a candidate's blocks."""


@dataclass(frozen=True)
class Request:
    """The limits on cost and agreement, and a training; each may be missing."""

    budget: float | None = None
    keep: float | None = None
    seed: int = 0
    train: TrainRequest | None = None

    @property
    def share(self) -> float | None:
        """The share of the blocks that may run: half where a training has no budget."""
        return TRAINED_SHARE if self.train is not None and self.budget is None else self.budget

    @property
    def least_agreement(self) -> float | None:
        """The agreement to keep; None where a share of the blocks is the only limit."""
        return KEEP if self.keep is None and self.share is None else self.keep

    def sizes(self, n_blocks: int) -> list[int]:
        """Return the numbers of blocks to try, the smallest first; refuse impossible limits.

        With a budget the largest number it allows, otherwise from a third upward.
        """
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InvalidValueError(
                f"keep= is the share of the agreement to keep, above 0 and at most 1, not "
                f"{self.keep:g}."
            )
        if self.budget is not None and self.budget + 1e-9 < 1 / n_blocks:
            raise InvalidValueError(
                f"budget={self.budget:g} allows no block: one of {n_blocks} costs "
                f"{1 / n_blocks:.2g}. Use budget={1 / n_blocks:.2g} or more."
            )
        if self.share is not None:
            return [max(1, min(int(self.share * n_blocks + 1e-9), n_blocks - 1))]
        shares = (1 / 3, 1 / 2, 2 / 3, 3 / 4, 5 / 6)
        counts = {max(1, int(share * n_blocks + 1e-9)) for share in shares}
        return sorted(count for count in counts if count < n_blocks)


@dataclass(frozen=True)
class Texts:
    """Texts divided: `checked` measure the agreement, `fitted` choose and fit."""

    name: str
    facts: dict[str, Any]
    checked: TextSet
    fitted: TextSet

    @classmethod
    def divide(
        cls, name: str, facts: dict[str, Any], texts: Sequence[str], queries: Sequence[str] = ()
    ) -> Texts:
        """Set a quarter of the texts and of the queries aside, at most `CHECKED` in all."""
        text_set = TextSet.of(texts, queries)
        count = max(LEAST_CHECKED // 2, min(CHECKED, len(text_set) // 4))
        return cls(name, facts, *text_set.cut(count))


@dataclass(frozen=True)
class MeasuredVariant:
    """A candidate, its model, and its agreement with the whole encoder on texts that fitted
    nothing.

    `agreement` is the correlation of similarities, `draws` are the same on resampled texts, and
    `neighbors` is the share of a text's nearest texts that are the same.
    """

    candidate: Candidate
    variant: Variant
    agreement: float
    draws: np.ndarray
    neighbors: float


@dataclass
class _Candidates:
    """The candidates, the whole encoder first, and how they came about."""

    encoder: Encoder
    texts: TextSet
    seed: int
    kind: BlockKind | None
    fitted: list[Batch]
    steps: list[Step] = field(default_factory=list)
    measured: list[MeasuredVariant] = field(default_factory=list)
    trained: TrainedBlocks | None = None

    def __post_init__(self) -> None:
        self._batches = self.encoder.batches(self.texts.texts)
        self._whole = self.encoder.encode(self.encoder.whole, self._batches)
        self.add(Candidate(self.encoder.whole.blocks), self.encoder.whole)

    def add(self, candidate: Candidate, variant: Variant) -> None:
        """Compare the vectors of a variant with those of the whole encoder."""
        vectors = self.encoder.encode(variant, self._batches)
        queries = self.texts.queries
        value, draws = measure_agreement(self._whole, vectors, queries, seed=self.seed)
        neighbors = shared_neighbors(self._whole, vectors, queries)
        self.measured.append(MeasuredVariant(candidate, variant, value, draws, neighbors))


def make_faster(
    encoder: Encoder,
    texts: Texts,
    request: Request,
    identity: dict[str, Any],
    bar: Progress,
    *,
    labels: Labeled | None = None,
    license_name: str = "unknown",
    config: dict[str, Any] | None = None,
) -> FasterEncoder:
    """Choose which blocks of an encoder to keep, refit them, and measure what is left."""
    start = perf_counter()
    candidates = _make_candidates(encoder, texts, request, bar)
    decision = _decide(candidates.measured, request)
    chosen = candidates.measured[decision.chosen]
    claim = decision.claim
    manifest: dict[str, Any] = {
        "kind": "encoder",
        "layerscope": VERSION,
        "status": "complete",
        "model": identity,
        "texts": {
            **texts.facts,
            "name": texts.name,
            "checked": len(texts.checked),
            "queries": texts.checked.queries,
            "fitted": sum(len(batch.rows) for batch in candidates.fitted),
            "tokens": sum(batch.tokens for batch in candidates.fitted),
        },
        "choice": {
            "blocks": list(chosen.candidate.blocks),
            "how": {**WEIGHTS, "refit": "refitted by least squares"}[chosen.candidate.transform],
            "cost": chosen.candidate.cost,
            "neighbors": chosen.neighbors,
        },
        "claim": {
            "source": claim.source,
            "before": claim.before,
            "after": claim.after,
            "interval": [claim.gain.low, claim.gain.high],
        },
        "labels": _label_claim(encoder, chosen.variant, labels, request.seed),
        "training": candidates.trained and _training(candidates.trained, candidates.measured),
        "speed": _speed(encoder, chosen.variant, texts.checked.first(_TIMED).texts),
        "conventions": {
            "agreement": RANKING if texts.checked.queries else AGREEMENT,
            "max_length": encoder.max_length,
            "seed": request.seed,
            "budget": request.budget,
            "keep": request.keep,
        },
        "config": config or {},
        "warnings": _notes(candidates, decision, request),
    }
    manifest["seconds"] = {"taken": perf_counter() - start}
    encoder_made = MadeEncoder(encoder, chosen.variant, texts.checked.texts, license_name)
    front = _front_table(candidates.measured, decision.chosen)
    return FasterEncoder(front, _removal_table(candidates.steps), manifest, _made=encoder_made)


def _make_candidates(
    encoder: Encoder, texts: Texts, request: Request, bar: Progress
) -> _Candidates:
    """Search, refit and train blocks of every size to try, and measure each candidate."""
    count = encoder.n_blocks
    sizes = request.sizes(count)
    kind = find_kind(encoder)
    lengths = np.cumsum(encoder.token_counts(texts.fitted.texts))
    fitting = max(1, int(np.searchsorted(lengths, MOST_TOKENS, side="right")))
    fitted = encoder.batches(texts.fitted.texts[:fitting])
    searched, trial_texts = texts.fitted.cut(min(SEARCHED, len(texts.fitted) // 2))
    bar.begin("searching which blocks can be left out|removals", count - min(sizes))
    batches = encoder.batches(searched.texts)
    steps = search(encoder, batches, min(sizes), bar.advance, searched.queries)
    candidates = _Candidates(encoder, texts.checked, request.seed, kind, fitted, steps)
    limit = request.least_agreement
    for size in sizes:
        if size not in {len(step.blocks) for step in steps}:
            continue
        blocks = choose_blocks(encoder, steps, size, kind, searched, trial_texts.first(SEARCHED))
        variant = encoder.variant(blocks)
        candidates.add(Candidate(blocks, cost=size / count), variant)
        if kind is not None:
            bar.begin(f"refitting {size} of {count} blocks|blocks", size)
            variant = refit(encoder, variant, fitted, kind, bar.advance).variant
            candidates.add(Candidate(blocks, "refit", cost=size / count), variant)
        if request.train is not None:
            candidates.trained = train_blocks(
                encoder, variant, texts.fitted, request.train, request.seed, bar
            )
            candidates.add(
                Candidate(blocks, "train", cost=size / count), candidates.trained.variant
            )
        best = max(entry.agreement for entry in candidates.measured[1:])
        # larger models need not be tried once half of the blocks were, and the limit is held
        if limit is not None and best >= limit and 2 * size >= count - 1:
            break
    return candidates


def _decide(measured: Sequence[MeasuredVariant], request: Request) -> Decision:
    """Choose by agreement; an error if nothing within the budget agrees enough."""
    values = np.array([entry.agreement for entry in measured])
    scores = Scores(values, np.stack([entry.draws for entry in measured]), "encoder")
    limits = Limits(request.share, request.least_agreement)
    decision = decide([entry.candidate for entry in measured], [scores], 0, limits)
    if request.share is not None and not decision.kept:
        raise LayerscopeError(
            f"nothing within budget={request.share:g} keeps {request.least_agreement:g} of the "
            f"agreement: the best keeps {decision.claim.after:.3f}. Raise the budget, or lower "
            "keep=."
        )
    return decision


def _front_table(measured: Sequence[MeasuredVariant], chosen: int) -> pd.DataFrame:
    rows = []
    for i, entry in enumerate(measured):
        low, high = np.quantile(entry.draws, (0.025, 0.975))
        rows.append(
            {
                "count": len(entry.candidate.blocks),
                "blocks": " ".join(map(str, entry.candidate.blocks)),
                "weights": WEIGHTS[entry.candidate.transform],
                "cost": entry.candidate.cost,
                "agreement": entry.agreement,
                "ci_low": float(low),
                "ci_high": float(high),
                "neighbors": entry.neighbors,
                "chosen": i == chosen,
            }
        )
    return pd.DataFrame(rows)


def _removal_table(steps: Sequence[Step]) -> pd.DataFrame:
    rows = [
        {"step": number, "block": block, "closeness": value, "removed": block == step.removed}
        for number, step in enumerate(steps, 1)
        for block, value in step.possible.items()
    ]
    return pd.DataFrame(rows, columns=["step", "block", "closeness", "removed"])


def _training(trained: TrainedBlocks, measured: Sequence[MeasuredVariant]) -> dict[str, float]:
    return {
        "steps": trained.steps,
        "texts": trained.texts,
        "agreement": measured[-1].agreement,
        "agreement_before": max(entry.agreement for entry in measured[1:-1]),
    }


def _label_claim(
    encoder: Encoder, variant: Variant, labels: Labeled | None, seed: int
) -> dict[str, Any] | None:
    """Return the scores of both encoders on labeled examples, which chose and fitted nothing."""
    if labels is None:
        return None
    batches = encoder.batches(labels.texts)
    vectors = np.stack([encoder.encode(entry, batches) for entry in (encoder.whole, variant)])
    measure = LabelMeasure(labels, seed=seed)
    judged = measure.items(vectors).judged
    weights = bootstrap_weights(len(labels), _DRAWS, seed, labels.groups)
    before, after = 100 * measure.score(judged, np.ones((1, len(labels))))[:, 0]
    draws = 100 * measure.score(judged, weights)
    low, high = np.quantile(draws[1] - draws[0], (0.025, 0.975))
    return {
        "examples": len(labels),
        "measure": measure.name,
        "before": float(before),
        "after": float(after),
        "interval": [float(low), float(high)],
    }


def _speed(encoder: Encoder, variant: Variant, texts: Sequence[str]) -> dict[str, float]:
    """Measure texts per second of both encoders, in turns: what else runs slows both alike."""
    batches = encoder.batches(texts)
    seconds = {"whole": 0.0, "faster": 0.0}
    for turn in range(4):
        for name, entry in (("whole", encoder.whole), ("faster", variant)):
            start = perf_counter()
            encoder.encode(entry, batches)
            if turn:  # the first turn pays for what is done once
                seconds[name] += perf_counter() - start
    return {name: 3 * len(texts) / max(duration, 1e-9) for name, duration in seconds.items()}


def _notes(candidates: _Candidates, decision: Decision, request: Request) -> list[str]:
    chosen = candidates.measured[decision.chosen]
    notes = []
    if candidates.kind is None:
        notes.append("blocks of this architecture cannot be refitted: they stay as they are.")
    limit = request.least_agreement
    if decision.chosen == decision.baseline:
        keeps = "agrees better" if limit is None else f"keeps {limit:g} of the agreement"
        notes.append(f"no smaller candidate {keeps}: all blocks are kept.")
    if request.keep is None and request.budget is None:
        notes.append(
            f"no limit was given: the cheapest with an agreement of {KEEP:g} or more is kept. Give "
            "budget= (a share of the computation) or keep= (an agreement) for another."
        )
    if candidates.trained is not None and chosen.candidate.transform != "train":
        notes.append(
            f"training did not help: agreement {candidates.measured[-1].agreement:.3f} after "
            f"{candidates.trained.steps:,} steps, {chosen.agreement:.3f} without. It is left out."
        )
    return notes
