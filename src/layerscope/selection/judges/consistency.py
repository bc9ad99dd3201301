"""Self-consistency: a good readout recognizes a text by a part of it. No encoder and no label is
needed.

Three questions, each asked of every candidate: does a text with 30 % of its words dropped find the
whole text; does the first half of a text find its second half; and how surely (InfoNCE)? Candidates
are ranked by each, and the ranks are added. The best 3 % then form a consensus, and the score is
the agreement with it: their common opinion is better than any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.readout import Readout
from layerscope.selection.judges.agreement import (
    Neighborhoods,
    agreement_items,
    cosines,
    similarities,
)
from layerscope.selection.judges.base import Candidates, rank_of, scored_by_items, text_weights

__all__ = ["drop_words", "halves"]

VIEWS = DROPPED, FIRST, SECOND = ("dropped", "first-half", "second-half")
DROP = 0.3
TEMPERATURE = 0.05
BEST = 0.03
LEAST_BEST = 5
LEAST_WORDS = 4
ROUNDS = 1


def units(text: str) -> tuple[list[str], str]:
    """What a text is made of, and what joins it: words, or characters where there are fewer than
    four words."""
    words = text.split()
    return (words, " ") if len(words) >= LEAST_WORDS else (list(text), "")


def drop_words(text: str, rng: np.random.Generator, share: float = DROP) -> str:
    """The text without a share of its words, drawn at random; at least one goes and one stays."""
    parts, joint = units(text)
    if len(parts) < 2:
        return text
    gone = set(
        rng.choice(
            len(parts), min(len(parts) - 1, max(1, round(share * len(parts)))), replace=False
        ).tolist()
    )
    return joint.join(part for i, part in enumerate(parts) if i not in gone)


def halves(text: str) -> tuple[str, str]:
    """The first and the second half of a text.

    >>> halves("one two three four five")
    ('one two three', 'four five')
    >>> halves("CCOC")
    ('CC', 'OC')
    """
    parts, joint = units(text)
    middle = (len(parts) + 1) // 2
    return joint.join(parts[:middle]), joint.join(parts[middle:])


def make_views(texts: Sequence[str], seed: int = 0) -> dict[str, list[str]]:
    """The parts of every text that the questions need."""
    rng = np.random.default_rng([seed, len(texts)])
    split = [halves(text) for text in texts]
    return {
        DROPPED: [drop_words(text, rng) for text in texts],
        FIRST: [first for first, _ in split],
        SECOND: [second for _, second in split],
    }


def consistency_items(candidates: Candidates) -> np.ndarray:
    """Per question, candidate and text (3, readouts, layers, texts): reciprocal ranks, and minus
    the InfoNCE loss."""
    rows = []
    for readout in candidates.readouts:
        views = [candidates.vectors(readout, view) for view in ("texts", DROPPED, FIRST, SECOND)]
        rows.append(np.stack([_questions(*layers) for layers in zip(*views, strict=True)], axis=1))
    return np.stack(rows, axis=1)


def _questions(*views: np.ndarray | Tensor) -> np.ndarray:
    """(3, texts) of one candidate, from its vectors of the texts, of most of each, and of its
    halves."""
    whole, dropped, first, second = (torch.as_tensor(rows) for rows in views)
    if not all(bool(torch.isfinite(rows).all()) for rows in (whole, dropped, first, second)):
        return np.full((3, len(whole)), np.nan)
    across = cosines(first, second)
    found = [_reciprocal_ranks(cosines(dropped, whole))]
    found.append((_reciprocal_ranks(across) + _reciprocal_ranks(across.T)) / 2)
    logits = across / TEMPERATURE
    own = logits.diagonal()
    found.append(own - (torch.logsumexp(logits, 0) + torch.logsumexp(logits, 1)) / 2)
    return torch.stack(found).cpu().numpy()


def _reciprocal_ranks(similarity: Tensor) -> Tensor:
    """1 / rank of the partner, which is on the diagonal; of equals half come before it."""
    own = similarity.diagonal()[:, None]
    before = (similarity > own).sum(1) + ((similarity == own).sum(1) - 1) / 2
    return 1 / (1 + before)


def added_ranks(items: np.ndarray, seed: int = 0) -> ScoredCandidates:
    """The three questions as one score: candidates ranked by each, ranks added; the same on
    resampled texts."""
    count = items.shape[-1]
    weights = np.concatenate([np.full((1, count), 1 / count), text_weights(count, seed)])
    means = items.astype(np.float64) @ weights.T  # (3, readouts, layers, draws)
    flat = means.reshape(3, -1, means.shape[-1])
    ranks = np.mean([rank_of(question) for question in flat], axis=0).reshape(means.shape[1:])
    facts = {"questions": ["dropped words", "halves", "InfoNCE"]}
    return ScoredCandidates(ranks[..., 0], ranks[..., 1:], judge="self-consistency", facts=facts)


class SelfConsistency:
    """Recognizing texts by their parts, then agreement with the consensus of those that do it
    best."""

    name = "self-consistency"
    summary = "recognizes texts by their parts, then agrees with the consensus of the readouts that do it best"
    views: tuple[str, ...] = VIEWS

    def judge(self, candidates: Candidates, *, seed: int = 0) -> ScoredCandidates:
        """The consensus's agreement with every candidate."""
        alone = added_ranks(consistency_items(candidates), seed).score
        leaders = best_candidates(alone)
        reference = Neighborhoods.of(consensus(candidates, leaders))
        items = agreement_items(reference, candidates)
        return scored_by_items(
            self.name, items, seed, leaders=len(leaders), rounds=ROUNDS, alone=alone
        )


def best_candidates(score: np.ndarray) -> list[tuple[int, int]]:
    """The places of the best share of the candidates, at least five."""
    known = int(np.isfinite(score).sum())
    count = min(known, max(LEAST_BEST, round(BEST * known)))
    order = np.argsort(-np.where(np.isfinite(score), score, -np.inf), axis=None, kind="stable")[
        :count
    ]
    return [(int(r), int(c)) for r, c in zip(*np.unravel_index(order, score.shape), strict=True)]


def consensus(candidates: Candidates, leaders: Sequence[tuple[int, int]]) -> Tensor:
    """The mean of the leaders' similarities (n, n), each standardized over the pairs of texts."""
    total: Tensor | None = None
    by_readout: dict[int, list[int]] = {}
    for readout, layer in leaders:
        by_readout.setdefault(readout, []).append(layer)
    for readout, layers in by_readout.items():
        name: Readout = candidates.readouts[readout]
        vectors = candidates.vectors(name)
        for layer in layers:
            found = similarities(vectors[layer])
            pairs = found[torch.isfinite(found)]
            found = (found - pairs.mean()) / pairs.std().clamp_min(1e-12)
            total = found if total is None else total + found
    assert total is not None
    return total.fill_diagonal_(-torch.inf)
