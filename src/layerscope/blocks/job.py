"""Make a sentence encoder faster: search, refit, measure, decide, write.

The texts are divided once: the search and the fit read some, the agreement is measured on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from layerscope.blocks.agreement import Agreement, TextSet, compare_vectors
from layerscope.blocks.encoder import Batch, Encoder, Variant
from layerscope.blocks.folder import MadeEncoder
from layerscope.blocks.kinds import BlockKind, find_kind
from layerscope.blocks.refit import refit
from layerscope.blocks.result import FasterEncoder
from layerscope.blocks.search import Step, choose_blocks, search
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

    def check(self, n_blocks: int) -> None:
        """Refuse limits that nothing can hold."""
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

    def sizes(self, n_blocks: int) -> list[int]:
        """Return the numbers of blocks to try, the smallest first.

        With a budget the largest number it allows, otherwise from a third upward.
        """
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
    """A candidate, its model, and its agreement with the whole encoder."""

    candidate: Candidate
    variant: Variant
    agreement: Agreement


class _Checker:
    """The comparison of candidates with the whole encoder on texts that fitted nothing."""

    def __init__(self, encoder: Encoder, texts: TextSet, seed: int) -> None:
        self.encoder = encoder
        self.texts = texts
        self.seed = seed
        self.batches = encoder.batches(texts.texts)
        self.whole = encoder.encode(encoder.whole, self.batches)

    def measure(self, candidate: Candidate, variant: Variant) -> MeasuredVariant:
        """Compare the vectors of a variant with those of the whole encoder."""
        vectors = self.encoder.encode(variant, self.batches)
        agreement = compare_vectors(self.whole, vectors, self.texts.queries, self.seed)
        return MeasuredVariant(candidate, variant, agreement)


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
    request.check(encoder.n_blocks)
    kind = find_kind(encoder)
    fitted = _tokenize_first(encoder, texts.fitted.texts)
    searched, trial_texts = texts.fitted.cut(min(SEARCHED, len(texts.fitted) // 2))
    sizes = request.sizes(encoder.n_blocks)
    bar.begin("searching which blocks can be left out|removals", encoder.n_blocks - min(sizes))
    batches = encoder.batches(searched.texts)
    steps = search(encoder, batches, min(sizes), bar.advance, searched.queries)
    checker = _Checker(encoder, texts.checked, request.seed)
    measured = [checker.measure(Candidate(encoder.whole.blocks), encoder.whole)]
    trained: TrainedBlocks | None = None
    limit = request.least_agreement
    for size in sizes:
        if size not in {len(step.blocks) for step in steps}:
            continue
        blocks = choose_blocks(encoder, steps, size, kind, searched, trial_texts.first(SEARCHED))
        cost = size / encoder.n_blocks
        for candidate, variant in _variants(encoder, blocks, kind, fitted, bar):
            measured.append(checker.measure(candidate, variant))
        if request.train is not None:
            variant = measured[-1].variant
            trained = train_blocks(encoder, variant, texts.fitted, request.train, request.seed, bar)
            candidate = Candidate(blocks, "train", cost=cost)
            measured.append(checker.measure(candidate, trained.variant))
        best = max(entry.agreement.value for entry in measured[1:])
        # larger models need not be tried once half of the blocks were, and the limit is held
        if limit is not None and best >= limit and 2 * size >= encoder.n_blocks - 1:
            break
    decision = _decide(measured, request)
    chosen = measured[decision.chosen]
    notes = _notes(measured, decision, trained, kind, request)
    timed = texts.checked.first(_TIMED).texts
    treatment = {**WEIGHTS, "refit": "refitted by least squares"}[chosen.candidate.transform]
    queries = texts.checked.queries
    manifest: dict[str, Any] = {
        "kind": "encoder",
        "layerscope": VERSION,
        "status": "complete",
        "model": identity,
        "texts": {
            **texts.facts,
            "name": texts.name,
            "checked": len(texts.checked),
            "queries": queries,
            "fitted": sum(len(batch.rows) for batch in fitted),
            "tokens": sum(batch.tokens for batch in fitted),
        },
        "choice": {
            "blocks": list(chosen.candidate.blocks),
            "how": treatment,
            "cost": chosen.candidate.cost,
            "neighbors": chosen.agreement.neighbors,
        },
        "claim": {
            "source": decision.claim.source,
            "before": decision.claim.before,
            "after": decision.claim.after,
            "interval": [decision.claim.gain.low, decision.claim.gain.high],
        },
        "labels": _label_claim(encoder, chosen.variant, labels, request.seed),
        "training": None if trained is None else _training(trained, measured),
        "speed": _speed(encoder, chosen.variant, timed),
        "conventions": {
            "agreement": RANKING if queries else AGREEMENT,
            "max_length": encoder.max_length,
            "seed": request.seed,
            "budget": request.budget,
            "keep": request.keep,
        },
        "config": config or {},
        "warnings": notes,
    }
    manifest["seconds"] = {"taken": perf_counter() - start}
    made_encoder = MadeEncoder(encoder, chosen.variant, texts.checked.texts, license_name)
    front = _front_table(measured, decision.chosen)
    return FasterEncoder(front, _removal_table(steps), manifest, _made=made_encoder)


def _tokenize_first(encoder: Encoder, texts: Sequence[str]) -> list[Batch]:
    """Tokenize texts, as many as hold `MOST_TOKENS` tokens."""
    lengths = np.cumsum(encoder.token_counts(texts))
    count = max(1, int(np.searchsorted(lengths, MOST_TOKENS, side="right")))
    return encoder.batches(texts[:count])


def _variants(
    encoder: Encoder,
    blocks: tuple[int, ...],
    kind: BlockKind | None,
    fitted: Sequence[Batch],
    bar: Progress,
) -> Iterator[tuple[Candidate, Variant]]:
    """Yield the variants of these blocks: as they are, and refitted where that is possible."""
    cost = len(blocks) / encoder.n_blocks
    plain = encoder.variant(blocks)
    yield Candidate(blocks, cost=cost), plain
    if kind is not None:
        bar.begin(f"refitting {len(blocks)} of {encoder.n_blocks} blocks|blocks", len(blocks))
        refitted = refit(encoder, plain, fitted, kind, bar.advance).variant
        yield Candidate(blocks, "refit", cost=cost), refitted


def _decide(measured: Sequence[MeasuredVariant], request: Request) -> Decision:
    """Choose by agreement; an error if nothing within the budget agrees enough."""
    values = np.array([entry.agreement.value for entry in measured])
    scores = Scores(values, np.stack([entry.agreement.draws for entry in measured]), "encoder")
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
        low, high = np.quantile(entry.agreement.draws, (0.025, 0.975))
        rows.append(
            {
                "count": len(entry.candidate.blocks),
                "blocks": " ".join(map(str, entry.candidate.blocks)),
                "weights": WEIGHTS[entry.candidate.transform],
                "cost": entry.candidate.cost,
                "agreement": entry.agreement.value,
                "ci_low": float(low),
                "ci_high": float(high),
                "neighbors": entry.agreement.neighbors,
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
        "agreement": measured[-1].agreement.value,
        "agreement_before": max(entry.agreement.value for entry in measured[1:-1]),
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
    groups = None if labels.kind == "scores" else labels.targets
    weights = bootstrap_weights(len(labels), _DRAWS, seed, groups)
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


def _notes(
    measured: Sequence[MeasuredVariant],
    decision: Decision,
    trained: TrainedBlocks | None,
    kind: BlockKind | None,
    request: Request,
) -> list[str]:
    chosen = measured[decision.chosen]
    notes = []
    if kind is None:
        notes.append(
            "blocks of this architecture cannot be refitted yet: they are kept as they are."
        )
    limit = request.least_agreement
    if decision.chosen == decision.baseline and limit is None:
        notes.append("the budget allows all blocks, and no smaller candidate agrees better.")
    elif decision.chosen == decision.baseline:
        notes.append(f"no smaller candidate keeps {limit:g} of the agreement: all blocks are kept.")
    if request.keep is None and request.budget is None:
        notes.append(
            f"no limit was given: the cheapest with an agreement of {KEEP:g} or more is kept. Give "
            "budget= (a share of the computation) or keep= (an agreement) for another."
        )
    if trained is not None and chosen.candidate.transform != "train":
        notes.append(
            f"training did not help: agreement {measured[-1].agreement.value:.3f} after "
            f"{trained.steps:,} steps, {chosen.agreement.value:.3f} without. It is left out."
        )
    return notes
