"""Make a sentence encoder faster: search, refit, measure, decide, write.

The texts are divided once: the search and the fit read some, the agreement is measured on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd

from layerscope.blocks.agreement import TextSet, measure_agreement, shared_neighbors
from layerscope.blocks.encoder import Batch, Encoder, Variant
from layerscope.blocks.folder import transformer_path, verify_folder, write_folder
from layerscope.blocks.kinds import BlockKind, find_kind
from layerscope.blocks.refit import refit
from layerscope.blocks.result import FasterEncoder
from layerscope.blocks.search import Step, choose_blocks, search
from layerscope.blocks.train import TrainedBlocks, TrainRequest, train_blocks
from layerscope.blocks.words import AGREEMENT, RANKING, card, headline
from layerscope.choose import Candidate, Decision, Limits, Scores, decide
from layerscope.choose.labels.measures import make_measure
from layerscope.choose.labels.read import Labeled
from layerscope.core.runs import MARKER
from layerscope.core.statistics import bootstrap_weights
from layerscope.errors import InvalidValueError, LayerscopeError
from layerscope.exporting.folder import published
from layerscope.exporting.servers import check_servers
from layerscope.progress import Progress
from layerscope.store import RunFolder, atomic
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
_VERIFIED = 20
_DRAWS = 1000
WEIGHTS = {"none": "as they are", "refit": "refitted", "train": "trained"}
"""What was done to the weights of a candidate's blocks."""


@dataclass(frozen=True)
class Request:
    """What is asked for: a limit on the cost, on the agreement, or neither; and a training."""

    budget: float | None = None
    keep: float | None = None
    seed: int = 0
    train: TrainRequest | None = None

    @property
    def share(self) -> float | None:
        """Return the share of the blocks that may run: half where a training has no budget."""
        return TRAINED_SHARE if self.train is not None and self.budget is None else self.budget

    def check(self, n_blocks: int) -> None:
        """Refuse limits that nothing can hold."""
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InvalidValueError(
                f"keep= is the share of the agreement to keep, above 0 and at most 1, not {self.keep:g}."
            )
        if self.budget is not None and self.budget + 1e-9 < 1 / n_blocks:
            raise InvalidValueError(
                f"budget={self.budget:g} allows no block: one of {n_blocks} costs "
                f"{1 / n_blocks:.2g}. Use budget={1 / n_blocks:.2g} or more."
            )


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
        both = TextSet.of(texts, queries)
        count = max(LEAST_CHECKED // 2, min(CHECKED, len(both) // 4))
        return cls(name, facts, *both.cut(count))


@dataclass
class MadeEncoder:
    """A variant of an encoder, ready to encode and to be written."""

    encoder: Encoder
    variant: Variant
    texts: Texts
    license: str

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors of length 1."""
        if not texts:
            return np.empty((0, self.encoder.model.width), dtype=np.float32)
        return self.encoder.encode(self.variant, self.encoder.batches(texts))

    def write(self, result: FasterEncoder, out: Path, overwrite: bool) -> Path:
        """Write and verify the folder; it appears complete or not at all."""
        with published(out, overwrite) as folder:
            write_folder(self.encoder, self.variant, folder)
            verified = verify_folder(
                self.encoder, self.variant, folder, self.texts.checked.first(_VERIFIED).texts
            )
            servers = check_servers(folder)
            manifest = {**result.manifest, "verification": verified, "servers": servers}
            atomic.write_text(folder / "README.md", card(manifest, self.license))
            marker = {
                "kind": "encoder",
                "layerscope": VERSION,
                "base": manifest["model"],
                "license": self.license,
                "blocks": list(self.variant.blocks),
                "transformer": transformer_path(self.encoder.folder),
                "verification": verified,
            }
            atomic.write_json(folder / MARKER, atomic.plain(marker))
            run = RunFolder(folder)
            result.write(run)
            result.manifest = run.write_manifest(manifest)
        return out


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
    fitted = _up_to(encoder, texts.fitted.texts)
    searched, others = texts.fitted.cut(min(SEARCHED, len(texts.fitted) // 2))
    sizes = _sizes(encoder.n_blocks, request)
    bar.begin("searching which blocks can be left out|removals", encoder.n_blocks - min(sizes))
    steps = search(
        encoder,
        encoder.batches(searched.texts),
        min(sizes),
        bar.advance,
        searched.queries,
    )
    found = {len(step.blocks) for step in steps}
    checked = encoder.batches(texts.checked.texts)
    queries = texts.checked.queries
    candidates = [_Measured(Candidate(encoder.whole.blocks), encoder.whole)]
    trained: TrainedBlocks | None = None
    limit = KEEP if request.keep is None and request.share is None else request.keep
    whole = encoder.encode(encoder.whole, checked)
    candidates[0].measure(whole, whole, queries, request.seed)
    for size in [size for size in sizes if size in found]:
        blocks = choose_blocks(encoder, steps, size, kind, searched, others.first(SEARCHED))
        for one in _of_size(encoder, blocks, kind, fitted, bar):
            vectors = encoder.encode(one.variant, checked)
            one.measure(whole, vectors, queries, request.seed)
            candidates.append(one)
        if request.train is not None:
            trained = train_blocks(
                encoder, candidates[-1].variant, texts.fitted, request.train, request.seed, bar
            )
            student = _Measured(
                Candidate(trained.variant.blocks, "train", cost=size / encoder.n_blocks),
                trained.variant,
            )
            vectors = encoder.encode(trained.variant, checked)
            student.measure(whole, vectors, queries, request.seed)
            candidates.append(student)
        if _is_enough(candidates, limit, size, encoder.n_blocks):
            break
    decision = decide(
        [one.candidate for one in candidates],
        [_scores(candidates)],
        baseline=0,
        limits=Limits(request.share, limit),
    )
    if request.share is not None and not decision.kept:
        raise LayerscopeError(
            f"nothing within budget={request.share:g} keeps {limit:g} of the agreement: the best "
            f"keeps {decision.claim.after:.3f}. Raise the budget, or lower keep=."
        )
    chosen = candidates[decision.chosen]
    made = MadeEncoder(encoder, chosen.variant, texts, license_name)
    manifest = _manifest(encoder, texts, fitted, identity, candidates, decision, labels, request)
    manifest |= {
        "config": config or {},
        "training": _training(trained, candidates),
        "warnings": _notes(kind, decision, limit, request),
    }
    if trained is not None and chosen.candidate.transform != "train":
        manifest["warnings"].append(
            f"training did not help: agreement {candidates[-1].agreement:.3f} after "
            f"{trained.steps:,} steps, {chosen.agreement:.3f} without. It is left out."
        )
    manifest["seconds"] = {"taken": perf_counter() - start}
    front = _front(candidates, decision.chosen)
    return FasterEncoder(front, _removals(steps), manifest, _made=made)


@dataclass
class _Measured:
    """A candidate, its model, and how it agrees with the whole encoder."""

    candidate: Candidate
    variant: Variant
    agreement: float = np.nan
    draws: np.ndarray | None = None
    neighbors: float = np.nan

    def measure(self, whole: np.ndarray, vectors: np.ndarray, queries: int, seed: int) -> None:
        """Compare vectors of the texts that fitted nothing; the first `queries` are queries."""
        self.agreement, self.draws = measure_agreement(whole, vectors, queries, seed=seed)
        self.neighbors = shared_neighbors(whole, vectors, queries)


def _sizes(n_blocks: int, request: Request) -> list[int]:
    """Return the numbers of blocks to try, the smallest first.

    With a budget the largest number it allows, otherwise from a third upward.
    """
    if request.share is not None:
        return [max(1, min(int(request.share * n_blocks + 1e-9), n_blocks - 1))]
    shares = (1 / 3, 1 / 2, 2 / 3, 3 / 4, 5 / 6)
    counts = {max(1, int(share * n_blocks + 1e-9)) for share in shares}
    return sorted(count for count in counts if count < n_blocks)


def _is_enough(
    candidates: Sequence[_Measured], limit: float | None, size: int, n_blocks: int
) -> bool:
    """Return whether larger models need not be tried: half was reported, and the limit is held."""
    best = max(one.agreement for one in candidates[1:])
    return limit is not None and best >= limit and 2 * size >= n_blocks - 1


def _of_size(
    encoder: Encoder,
    blocks: tuple[int, ...],
    kind: BlockKind | None,
    fitted: Sequence[Batch],
    bar: Progress,
) -> list[_Measured]:
    """Return the candidates with these blocks: as they are, and refitted where that is possible."""
    cost = len(blocks) / encoder.n_blocks
    plain = encoder.variant(blocks)
    found = [_Measured(Candidate(blocks, cost=cost), plain)]
    if kind is not None:
        bar.begin(f"refitting {len(blocks)} of {encoder.n_blocks} blocks|blocks", len(blocks))
        done = refit(encoder, plain, fitted, kind, bar.advance)
        found.append(_Measured(Candidate(blocks, "refit", cost=cost), done.variant))
    return found


def _up_to(encoder: Encoder, texts: Sequence[str]) -> list[Batch]:
    """Tokenize texts, as many as hold `MOST_TOKENS` tokens."""
    lengths = np.cumsum([len(row) for row in encoder.model.tokenize(texts, encoder.max_length).ids])
    count = max(1, int(np.searchsorted(lengths, MOST_TOKENS, side="right")))
    return encoder.batches(texts[:count])


def _scores(candidates: Sequence[_Measured]) -> Scores:
    values = np.array([one.agreement for one in candidates])
    draws = np.stack([one.draws for one in candidates if one.draws is not None])
    return Scores(values, draws, "encoder")


def _front(candidates: Sequence[_Measured], chosen: int) -> pd.DataFrame:
    rows = []
    for i, one in enumerate(candidates):
        assert one.draws is not None
        low, high = np.quantile(one.draws, (0.025, 0.975))
        rows.append(
            {
                "count": len(one.candidate.blocks),
                "blocks": " ".join(map(str, one.candidate.blocks)),
                "weights": WEIGHTS[one.candidate.transform],
                "cost": one.candidate.cost,
                "agreement": one.agreement,
                "ci_low": float(low),
                "ci_high": float(high),
                "neighbors": one.neighbors,
                "chosen": i == chosen,
            }
        )
    return pd.DataFrame(rows)


def _removals(steps: Sequence[Step]) -> pd.DataFrame:
    rows = [
        {
            "step": number,
            "block": block,
            "closeness": value,
            "removed": block == step.removed,
        }
        for number, step in enumerate(steps, 1)
        for block, value in step.possible.items()
    ]
    return pd.DataFrame(rows, columns=["step", "block", "closeness", "removed"])


def _manifest(
    encoder: Encoder,
    texts: Texts,
    fitted: Sequence[Batch],
    identity: dict[str, Any],
    candidates: Sequence[_Measured],
    decision: Decision,
    labels: Labeled | None,
    request: Request,
) -> dict[str, Any]:
    chosen = candidates[decision.chosen]
    how = {**WEIGHTS, "refit": "refitted by least squares"}[chosen.candidate.transform]
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
            "fitted": sum(len(batch.rows) for batch in fitted),
            "tokens": sum(batch.tokens for batch in fitted),
        },
        "choice": {
            "blocks": list(chosen.candidate.blocks),
            "how": how,
            "cost": chosen.candidate.cost,
            "neighbors": chosen.neighbors,
        },
        "claim": {
            "source": decision.claim.source,
            "before": decision.claim.before,
            "after": decision.claim.after,
            "interval": [decision.claim.gain.low, decision.claim.gain.high],
        },
        "labels": None
        if labels is None
        else _label_claim(encoder, chosen.variant, labels, request),
        "speed": _speed(encoder, chosen.variant, texts.checked.first(_TIMED).texts),
        "conventions": {
            "agreement": RANKING if texts.checked.queries else AGREEMENT,
            "interval": f"95 %, {'queries' if texts.checked.queries else 'texts'} resampled",
            "search": f"greedy removal or evenly spaced, by a quick refit; {SEARCHED} texts each",
            "max_length": encoder.max_length,
            "seed": request.seed,
            "budget": request.budget,
            "keep": request.keep,
        },
    }
    manifest["reason"] = headline(manifest)
    return manifest


def _training(
    trained: TrainedBlocks | None, candidates: Sequence[_Measured]
) -> dict[str, Any] | None:
    if trained is None:
        return None
    return {
        "steps": trained.steps,
        "texts": trained.texts,
        "agreement": candidates[-1].agreement,
        "agreement_before": max(one.agreement for one in candidates[1:-1]),
    }


def _label_claim(
    encoder: Encoder, variant: Variant, labels: Labeled, request: Request
) -> dict[str, Any]:
    """Score both encoders on labeled examples, which chose and fitted nothing."""
    batches = encoder.batches(labels.texts)
    vectors = np.stack([encoder.encode(one, batches) for one in (encoder.whole, variant)])
    measure = make_measure(labels, 5, request.seed)
    judged = measure.items(vectors).judged
    groups = None if labels.kind == "scores" else labels.targets
    drawn = bootstrap_weights(len(labels), _DRAWS, request.seed, groups)
    before, after = 100 * measure.score(judged, np.ones((1, len(labels))))[:, 0]
    draws = 100 * measure.score(judged, drawn)
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
        for name, one in (("whole", encoder.whole), ("faster", variant)):
            start = perf_counter()
            encoder.encode(one, batches)
            if turn:  # the first turn pays for what is done once
                seconds[name] += perf_counter() - start
    return {name: 3 * len(texts) / max(taken, 1e-9) for name, taken in seconds.items()}


def _notes(
    kind: BlockKind | None, decision: Decision, limit: float | None, request: Request
) -> list[str]:
    notes = []
    if kind is None:
        notes.append(
            "blocks of this architecture cannot be refitted yet: they are kept as they are."
        )
    if decision.chosen == decision.baseline:
        notes.append(f"no smaller candidate keeps {limit:g} of the agreement: all blocks are kept.")
    if request.keep is None and request.budget is None:
        notes.append(
            f"no limit was given: the cheapest with an agreement of {KEEP:g} or more is kept. Give "
            "budget= (a share of the computation) or keep= (an agreement) for another."
        )
    return notes
