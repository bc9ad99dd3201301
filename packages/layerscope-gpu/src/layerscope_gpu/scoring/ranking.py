"""Scores that need no fit: pairs against gold values or labels, and documents ranked for queries.

Cosines are computed as in mteb's evaluators, in float32 and by the same formula, so that equal
vectors have equal ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts (numbers of rows) with a gold value each.

    With `labeled`, it is 1 for texts that belong together and 0 for others.
    """

    texts_a: np.ndarray
    texts_b: np.ndarray
    gold: np.ndarray
    labeled: bool = False
    measures: tuple[str, ...] = ("cosine",)


@dataclass(frozen=True)
class Ranking:
    """Queries and documents (numbers of rows), their judgments, and the measure.

    `pairs` lists the documents that are ranked for queries, as two rows of places in `documents`
    and `queries`; None ranks all for all. Queries of one group count as one, with a document's best
    score. `judged` has three rows: number of a group, place of a document (−1 for a missing one),
    grade. `order` breaks ties: the larger comes first, as in trec_eval. `skip` is the place of the
    document that is left out for each query, or −1.
    """

    queries: np.ndarray
    documents: np.ndarray
    pairs: np.ndarray | None
    groups: np.ndarray
    judged: np.ndarray
    order: np.ndarray
    measure: str = "map"
    depth: int = 1000
    skip: np.ndarray | None = None


MEASURES = ("similarity", "cosine", "manhattan", "euclidean", "dot")


def pair_values(vectors: Tensor, problem: Pairs, measure: str, block: int = 2**26) -> Tensor:
    """Return the similarity of the texts of each pair (layers, pairs), or the negative distance."""
    layers, _, width = vectors.shape
    rows_a = torch.as_tensor(problem.texts_a, device=vectors.device)
    rows_b = torch.as_tensor(problem.texts_b, device=vectors.device)
    out = torch.empty(layers, len(rows_a), device=vectors.device)
    step = max(1, block // (layers * width))
    for start in range(0, len(rows_a), step):
        columns = slice(start, start + step)
        a = vectors[:, rows_a[columns]]
        b = vectors[:, rows_b[columns]]
        if measure == "dot":
            value = (a * b).sum(2)
        elif measure == "manhattan":
            value = -(a - b).abs_().sum(2)
        elif measure == "euclidean":
            value = -torch.linalg.vector_norm(a - b, dim=2)
        else:
            a = _unit(a)
            b = _unit(b)
            value = (a * b).sum(2) if measure == "similarity" else 1 - (a - b).square_().sum(2) / 2
        out[:, columns] = value
    return out


def _unit(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=-1, keepdim=True).clamp_min(1e-12)


def pair_scores(vectors: Tensor, problem: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (layers,) and the values (layers, pairs) behind them, of each layer's best
    measure."""
    gold = torch.as_tensor(problem.gold, dtype=torch.float64, device=vectors.device)
    best = torch.full((len(vectors),), -torch.inf, dtype=torch.float64, device=vectors.device)
    best_values = torch.empty(len(vectors), len(gold), device=vectors.device)
    for measure in problem.measures:
        values = pair_values(vectors, problem, measure)
        scores = _average_precision(values, gold) if problem.labeled else _spearman(values, gold)
        better = ~(scores <= best)
        best[better] = scores[better]
        best_values[better] = values[better]
    return best.cpu().numpy(), best_values.double().cpu().numpy()


def _runs(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first and last place of the run of equal values to which each of the sorted values
    (…, n) belongs."""
    n = ordered.shape[-1]
    place = torch.arange(n, device=ordered.device).expand_as(ordered)
    change = ordered[..., 1:] != ordered[..., :-1]
    edge = torch.ones_like(ordered[..., :1], dtype=torch.bool)
    starts = torch.where(torch.cat([edge, change], -1), place, 0).cummax(-1).values
    ends = torch.where(torch.cat([change, edge], -1), place, n).flip(-1).cummin(-1).values.flip(-1)
    return starts, ends


def _spearman(values: Tensor, gold: Tensor) -> Tensor:
    """Return Spearman's ρ of each row (layers, n) with gold values (n,), NaN for a constant row."""

    def ranks(numbers: Tensor) -> Tensor:
        ordered, order = numbers.sort(-1)
        starts, ends = _runs(ordered)
        out = torch.empty_like(numbers, dtype=torch.float64).scatter_(
            -1, order, (starts + ends).double() / 2
        )
        return out - out.mean(-1, keepdim=True)

    a = ranks(values)
    b = ranks(gold)
    return (a * b).sum(-1) / torch.sqrt(a.square().sum(-1) * b.square().sum(-1))


def _average_precision(values: Tensor, relevant: Tensor) -> Tensor:
    """Return the average precision of each row's ranking, with ties ranked together."""
    ordered, order = values.sort(-1, descending=True)
    hit = relevant[order]
    last = _runs(ordered)[1]
    return (hit * hit.cumsum(-1).gather(-1, last) / (last + 1)).sum(-1) / relevant.sum()


def rank_scores(
    vectors: Tensor, problem: Ranking, block: int = 2**26
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores (layers,) and those of each group of queries (layers, groups)."""
    ranker = _Ranker(problem, vectors.device, block)
    items = torch.stack([ranker.measured(layer) for layer in vectors]).cpu().numpy()
    return items.mean(1).round(5), items


class _Ranker:
    """A ranking's data that are the same for all layers, on the device."""

    def __init__(self, problem: Ranking, device: torch.device, block: int) -> None:
        def moved(values: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(values), device=device)

        self.problem = problem
        self.block = block
        self.queries = moved(problem.queries)
        self.documents = moved(problem.documents)
        self.groups = moved(problem.groups)
        self.order = moved(problem.order)
        self.count = int(problem.groups.max()) + 1
        judged = moved(problem.judged)
        group = judged[0].long()
        document = judged[1].long()
        grade = judged[2].double().clamp_min(0)
        zeros = torch.zeros(self.count, dtype=torch.float64, device=device)
        self.n_relevant = zeros.index_add(0, group, (grade > 0).double())
        order = torch.argsort(grade, descending=True, stable=True)
        order = order[torch.argsort(group[order], stable=True)]
        ranks = self._ranks(group[order])
        gains = torch.where(ranks < problem.depth, grade[order] / torch.log2(ranks + 2.0), 0.0)
        self.ideal = zeros.index_add(0, group[order], gains)
        is_known = document >= 0
        codes, where = torch.sort(group[is_known] * len(problem.documents) + document[is_known])
        self.codes = codes
        self.grades = grade[is_known][where]
        self.slot: Tensor | None = None
        if problem.pairs is not None:
            pairs = moved(problem.pairs)
            if problem.skip is not None:
                pairs = pairs[:, pairs[0] != moved(problem.skip)[pairs[1]]]
            # later stable sorts keep ties in this order
            best_first = torch.argsort(self.order[pairs[0]], descending=True)
            self.place, self.asked = pairs[:, best_first]
            slots = self.groups[self.asked] * len(problem.documents) + self.place
            self.slots = slots
            if self.count < len(self.groups):
                self.slots, self.slot = torch.unique(slots, return_inverse=True)

    def measured(self, layer: Tensor) -> Tensor:
        """Return the measure of each group of queries."""
        unit = torch.nn.functional.normalize(layer, dim=1)
        if self.problem.pairs is None:
            slots, scores = self._searched(unit)
        else:
            slots = self.slots
            scores = self._compared(unit)
            if self.slot is not None:
                scores = scores.new_full((len(slots),), -torch.inf).scatter_reduce(
                    0, self.slot, scores, "amax"
                )
        if self.problem.pairs is None or self.slot is not None:
            by_tie_order = torch.argsort(self.order[slots % len(self.documents)], descending=True)
            slots = slots[by_tie_order]
            scores = scores[by_tie_order]
        best = torch.argsort(scores, descending=True, stable=True)
        slots = slots[best]
        slots = slots[torch.argsort(slots // len(self.documents), stable=True)]
        group = slots // len(self.documents)
        places = torch.searchsorted(self.codes, slots).clamp_max(len(self.codes) - 1)
        grade = torch.where(self.codes[places] == slots, self.grades[places], 0.0)
        rank = self._ranks(group)
        grade = torch.where(rank < self.problem.depth, grade, 0.0)
        zeros = torch.zeros(self.count, dtype=torch.float64, device=layer.device)
        if self.problem.measure == "map":
            hit = (grade > 0).double()
            hits = hit.cumsum(0)
            start = torch.searchsorted(group, group)  # the group's first entry
            value = hit * (hits - hits[start] + hit[start]) / (rank + 1)
            return zeros.index_add(0, group, value) / self.n_relevant.clamp_min(1)
        value = grade / torch.log2(rank + 2.0)
        return zeros.index_add(0, group, value) / self.ideal.clamp_min(1e-30)

    @staticmethod
    def _ranks(group: Tensor) -> Tensor:
        """Return the place, from 0, of each entry in its group; groups are contiguous."""
        return (
            torch.arange(len(group), device=group.device) - torch.searchsorted(group, group)
        ).double()

    def _compared(self, unit: Tensor) -> Tensor:
        """Return the cosines of the pairs, from the table of all where most of it is needed."""
        out = unit.new_empty(len(self.asked))
        rows, query = torch.unique(self.queries[self.asked], return_inverse=True)
        if len(rows) * len(self.documents) > 8 * len(out):
            step = max(1, self.block // unit.shape[1])
            for i in range(0, len(out), step):
                batch = slice(i, i + step)
                out[batch] = (
                    unit[rows[query[batch]]] * unit[self.documents[self.place[batch]]]
                ).sum(1)
            return out
        step = max(1, self.block // len(self.documents))
        documents = unit[self.documents]
        by_query = torch.argsort(query)
        ends = torch.searchsorted(
            query[by_query], torch.arange(0, len(rows) + step, step, device=unit.device)
        ).tolist()
        for i, (low, high) in enumerate(pairwise(ends)):
            pairs = by_query[low:high]
            out[pairs] = (unit[rows[i * step : (i + 1) * step]] @ documents.T)[
                query[pairs] - i * step, self.place[pairs]
            ]
        return out

    def _searched(self, unit: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best documents of each query and their cosines, by blocks of documents."""
        queries = unit[self.queries]
        documents = unit[self.documents]
        depth = min(self.problem.depth + 1, len(documents))
        best = queries.new_empty(len(queries), 0)
        places = torch.empty(len(queries), 0, dtype=torch.long, device=unit.device)
        step = max(1, self.block // len(queries))
        for start in range(0, len(documents), step):
            scores = queries @ documents[start : start + step].T
            numbers = torch.arange(start, start + scores.shape[1], device=unit.device).expand_as(
                scores
            )
            if self.problem.skip is not None:
                skip = torch.as_tensor(self.problem.skip, device=unit.device)
                scores = scores.masked_fill(numbers == skip[:, None], -torch.inf)
            best, columns = torch.cat([best, scores], 1).topk(
                min(depth, best.shape[1] + scores.shape[1]), 1
            )
            places = torch.cat([places, numbers], 1).gather(1, columns)
        return (self.groups[:, None] * len(documents) + places).flatten(), best.flatten()
