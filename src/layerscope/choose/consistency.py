"""Self-consistency: a good readout recognizes a text by a part of it. No encoder and no label is
needed.

Every candidate is asked three questions. Does a text with 30 % of its words dropped find the whole
text? Does the first half of a text find its second half? How surely (InfoNCE)? Candidates are
ranked by each, and the ranks are added. The best 3 % then form a consensus, and the score is the
agreement with it: their common opinion is better than any of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from layerscope.choose.judges import TEXTS, Candidates, cosines, similarities, text_weights
from layerscope.core.scores import Scores

__all__ = ["drop_words", "halves"]

VIEWS = DROPPED, FIRST, SECOND = ("dropped", "first-half", "second-half")
DROP = 0.3
TEMPERATURE = 0.05
BEST = 0.03
LEAST_BEST = 5
LEAST_WORDS = 4


def units(text: str) -> tuple[list[str], str]:
    """Return the words of a text and the space that joins them; of few words the characters."""
    words = text.split()
    return (words, " ") if len(words) >= LEAST_WORDS else (list(text), "")


def drop_words(text: str, rng: np.random.Generator, share: float = DROP) -> str:
    """Return the text without a share of its words; at least one goes and one stays."""
    pieces, joint = units(text)
    if len(pieces) < 2:
        return text
    count = min(len(pieces) - 1, max(1, round(share * len(pieces))))
    dropped = set(rng.choice(len(pieces), count, replace=False).tolist())
    return joint.join(piece for i, piece in enumerate(pieces) if i not in dropped)


def halves(text: str) -> tuple[str, str]:
    """Return the first and the second half of a text.

    >>> halves("one two three four five")
    ('one two three', 'four five')
    >>> halves("CCOC")
    ('CC', 'OC')
    """
    pieces, joint = units(text)
    middle = (len(pieces) + 1) // 2
    return joint.join(pieces[:middle]), joint.join(pieces[middle:])


def make_views(texts: Sequence[str], seed: int = 0) -> dict[str, list[str]]:
    """Return the parts of every text that the questions need."""
    rng = np.random.default_rng([seed, len(texts)])
    split = [halves(text) for text in texts]
    return {
        DROPPED: [drop_words(text, rng) for text in texts],
        FIRST: [first_half for first_half, _ in split],
        SECOND: [second_half for _, second_half in split],
    }


def consistency_items(candidates: Candidates) -> np.ndarray:
    """Return reciprocal ranks and minus the InfoNCE loss: (3 questions, candidates, texts)."""
    answers = []
    for candidate in candidates.candidates:
        views = [candidates.vectors(candidate, view) for view in (TEXTS, *VIEWS)]
        answers.append(_answers(*views))
    return np.stack(answers, axis=1)


def _answers(*views: np.ndarray | Tensor) -> np.ndarray:
    """Return the answers (3, texts) of one candidate.

    They follow from its vectors of the texts, of most of each text, and of its halves.
    """
    whole, dropped, first_half, second_half = (torch.as_tensor(rows) for rows in views)
    if not all(
        bool(torch.isfinite(rows).all()) for rows in (whole, dropped, first_half, second_half)
    ):
        return np.full((3, len(whole)), np.nan)
    across = cosines(first_half, second_half)
    logits = across / TEMPERATURE
    loss = (torch.logsumexp(logits, 0) + torch.logsumexp(logits, 1)) / 2 - logits.diagonal()
    answers = (
        _reciprocal_ranks(cosines(dropped, whole)),
        (_reciprocal_ranks(across) + _reciprocal_ranks(across.T)) / 2,
        -loss,
    )
    return torch.stack(answers).cpu().numpy()


def _reciprocal_ranks(similarity: Tensor) -> Tensor:
    """Return 1 / rank of the partner, which is on the diagonal; half of equal ones come first."""
    partner = similarity.diagonal()[:, None]
    before = (similarity > partner).sum(1) + ((similarity == partner).sum(1) - 1) / 2
    return 1 / (1 + before)


def added_ranks(items: np.ndarray, seed: int = 0) -> Scores:
    """Return the mean rank of every candidate over the questions, and on resampled texts.

    Ranks run from 0 (worst) to 1 (best); candidates that are undefined have none.
    """
    count = items.shape[-1]
    weights = np.concatenate([np.full((1, count), 1 / count), text_weights(count, seed)])
    means = items.astype(np.float64) @ weights.T  # (3, candidates, draws)
    is_defined = max(int(np.isfinite(means[0, :, 0]).sum()), 2)
    places = [pd.DataFrame(question).rank(method="first").to_numpy() for question in means]
    ranks = (np.mean(places, axis=0) - 1) / (is_defined - 1)
    return Scores(ranks[:, 0], ranks[:, 1:], "self-consistency")


def best_candidates(values: np.ndarray) -> list[int]:
    """Return the best share of the candidates, at least five."""
    is_defined = np.isfinite(values)
    count = min(int(is_defined.sum()), max(LEAST_BEST, round(BEST * is_defined.sum())))
    order = np.argsort(-np.where(is_defined, values, -np.inf), kind="stable")
    return [int(place) for place in order[:count]]


def consensus(candidates: Candidates, leaders: Sequence[int]) -> Tensor:
    """Return the sum of the leaders' similarities (n, n), each standardized over the pairs."""
    total: Tensor | None = None
    chosen = [candidates.candidates[leader] for leader in leaders]
    readouts = [candidate.readout for candidate in chosen]
    # the layers of a readout one after the other, as they are stored
    for candidate in sorted(chosen, key=lambda candidate: readouts.index(candidate.readout)):
        similarity = similarities(candidates.vectors(candidate))
        pairs = similarity[torch.isfinite(similarity)]
        similarity = (similarity - pairs.mean()) / pairs.std().clamp_min(1e-12)
        total = similarity if total is None else total + similarity
    assert total is not None
    return total.fill_diagonal_(-torch.inf)
