"""The search for blocks to leave out, and the agreement of a smaller model with the whole one.

Greedy removal, and evenly spaced blocks beside it. Blocks that look best as they are do not always
refit best: so both subsets are quickly refitted, and compared on texts that fitted neither.

Agreement is about vectors: without queries, all similarities between two texts are compared; with
queries, those between each query and all documents are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.blocks.encoder import Batch, Encoder, Start, Variant
from layerscope.blocks.refit import BlockKind, refit, states_behind
from layerscope.choose.judges import NEIGHBORS, Neighborhoods, similarities

DRAWS = 200


# Agreement
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextSet:
    """Texts, of which the first `queries` are queries and the others their documents."""

    texts: tuple[str, ...]
    queries: int = 0

    @classmethod
    def of(cls, texts: Sequence[str], queries: Sequence[str] = ()) -> TextSet:
        """Put queries before texts."""
        return cls((*queries, *texts), len(queries))

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: int) -> TextSet:
        """Return some of the texts; half of them queries, if there are as many."""
        queries = min(self.queries, count // 2)
        documents = self.texts[self.queries : self.queries + count - queries]
        return TextSet.of(documents, self.texts[:queries])

    def cut(self, count: int) -> tuple[TextSet, TextSet]:
        """Divide into the first `count` texts and the rest; of queries the same share."""
        queries = round(self.queries * count / max(1, len(self)))
        documents = self.texts[self.queries :]
        head = TextSet.of(documents[: count - queries], self.texts[:queries])
        tail = TextSet.of(documents[count - queries :], self.texts[queries : self.queries])
        return head, tail


def closeness(whole: np.ndarray, smaller: np.ndarray, queries: int = 0) -> float:
    """Return what the search maximizes: the correlation of the similarities, plus the mean cosine
    of a text's two vectors (2 at most).

    >>> rows = np.eye(4)
    >>> closeness(rows, rows)
    2.0
    """
    cosine = float((whole * smaller).sum(1).mean())
    if queries:
        return float(np.mean(query_correlations(whole, smaller, queries))) + cosine
    above = np.triu_indices(len(whole), 1)
    pairs = [(rows @ rows.T)[above] for rows in (whole, smaller)]
    if np.ptp(pairs[0]) == 0:
        return float(np.ptp(pairs[1]) == 0) + cosine
    return float(np.corrcoef(*pairs)[0, 1]) + cosine


def query_correlations(whole: np.ndarray, smaller: np.ndarray, queries: int) -> np.ndarray:
    """Return for each query the correlation (queries,) of its similarities to all documents."""
    products = []
    for rows in (whole, smaller):
        similarity = (rows[:queries] @ rows[queries:].T).astype(np.float64)
        products.append(similarity - similarity.mean(1, keepdims=True))
    lengths = np.linalg.norm(products[0], axis=1) * np.linalg.norm(products[1], axis=1)
    correlations: np.ndarray = (products[0] * products[1]).sum(1) / np.maximum(lengths, 1e-30)
    return correlations


def measure_agreement(
    whole: np.ndarray, smaller: np.ndarray, queries: int = 0, draws: int = DRAWS, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Return the correlation of similarities, and the same on resamples (draws,).

    Without queries: of all similarities between two different texts, texts resampled. With queries:
    the mean over queries of `query_correlations`, queries resampled.
    """
    count = queries or len(whole)
    rng = np.random.default_rng(seed)
    weights = rng.multinomial(count, np.full(count, 1 / count), draws)
    if queries:
        correlations = query_correlations(whole, smaller, queries)
        return float(correlations.mean()), weights / queries @ correlations
    weights = np.vstack([np.ones(count), weights]).astype(np.float64)
    whole_products, smaller_products = (
        rows.astype(np.float64) @ rows.T for rows in (whole, smaller)
    )
    for matrix in (whole_products, smaller_products):
        np.fill_diagonal(matrix, 0.0)
    pairs = weights.sum(1) ** 2 - (weights**2).sum(1)

    def mean(matrix: np.ndarray) -> np.ndarray:
        """Return the weighted mean over pairs under each resample."""
        total: np.ndarray = ((weights @ matrix) * weights).sum(1) / pairs
        return total

    first_mean = mean(whole_products)
    second_mean = mean(smaller_products)
    covariance = mean(whole_products * smaller_products) - first_mean * second_mean
    variance = (mean(whole_products**2) - first_mean**2) * (
        mean(smaller_products**2) - second_mean**2
    )
    correlation = covariance / np.sqrt(np.maximum(variance, 1e-30))
    return float(correlation[0]), correlation[1:]


def shared_neighbors(whole: np.ndarray, smaller: np.ndarray, queries: int = 0) -> float:
    """Return the share of a text's nearest texts (a query's nearest documents) by the whole model
    that are its nearest by the other."""
    if not queries:
        reference = Neighborhoods.of(similarities(whole))
        return float(reference.overlap(similarities(smaller)).mean())
    count = min(NEIGHBORS, len(whole) - queries)
    nearest = [
        np.argsort(-(rows[:queries] @ rows[queries:].T), axis=1)[:, :count]
        for rows in (whole, smaller)
    ]
    shared = [len(np.intersect1d(*rows)) / count for rows in zip(*nearest, strict=True)]
    return float(np.mean(shared))


# Search
# ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One removal: the block, the remaining blocks, and the closeness of the rest to the whole
    model after each removal that was possible at this step."""

    removed: int
    blocks: tuple[int, ...]
    possible: dict[int, float]


def search(
    encoder: Encoder,
    batches: Sequence[Batch],
    smallest: int,
    advance: Callable[[int], None] = lambda n: None,
    queries: int = 0,
) -> list[Step]:
    """Remove one block after the other until `smallest` are left; the best removal at each step.

    Blocks are judged as they are. The first `queries` texts are queries. States in front of a
    removed block are shared: only the blocks behind it run again.
    """
    current = encoder.whole
    whole = encoder.encode(current, batches)
    removable = encoder.removable()
    steps = []
    while len(current.blocks) > smallest:
        scores = {}
        for block, starts in _starts(encoder, current, batches, removable).items():
            vectors = encoder.encode(current.remove(block), batches, starts)
            scores[block] = closeness(whole, vectors, queries)
        if not scores:
            break
        removed = max(scores, key=lambda block: scores[block])
        current = current.remove(removed)
        steps.append(Step(removed, current.blocks, scores))
        advance(1)
    return steps


def _starts(
    encoder: Encoder, current: Variant, batches: Sequence[Batch], removable: Sequence[bool]
) -> dict[int, list[Start | None]]:
    """Return for each block that may go the states in front of it."""
    states: list[Start | None] = [None] * len(batches)
    starts: dict[int, list[Start | None]] = {}
    for place, block in enumerate(current.blocks):
        if removable[block]:
            starts[block] = states
        if place + 1 < len(current.blocks):
            single = Variant((block,), (current.modules[place],))
            states = states_behind(encoder, single, batches, states)
    return starts


def choose_blocks(
    encoder: Encoder,
    steps: Sequence[Step],
    size: int,
    kind: BlockKind | None,
    searched: TextSet,
    trial: TextSet,
) -> tuple[int, ...]:
    """Return the blocks of one size that agree best with the whole encoder on trial texts.

    The greedy choice and evenly spaced blocks are compared, each quickly refitted on the searched
    texts.
    """
    removable = encoder.removable()
    spaced = tuple(np.linspace(0, encoder.n_blocks - 1, size).round().astype(int).tolist())
    subsets = [step.blocks for step in steps if len(step.blocks) == size]
    if all(removable[k] for k in range(encoder.n_blocks) if k not in spaced):
        subsets.append(spaced)
    subsets = list(dict.fromkeys(subsets))
    if len(subsets) == 1:
        return subsets[0]
    batches = encoder.batches(searched.texts)
    compared = encoder.batches(trial.texts)
    whole = encoder.encode(encoder.whole, compared)

    def agreement(blocks: tuple[int, ...]) -> float:
        variant = encoder.variant(blocks)
        if kind is not None:
            variant = refit(encoder, variant, batches, kind).variant
        return closeness(whole, encoder.encode(variant, compared), trial.queries)

    return max(subsets, key=agreement)
