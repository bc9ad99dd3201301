"""The fifteen tasks of `benchmarks/improve.py`: their texts, and the score of vectors of those
texts.

Quick stand-ins for MTEB's own scoring: Spearman of cosines (STS), average precision of cosines
(pairs), average precision per query (reranking), ridge probes with 16 examples per class
(classification), V-measure of k-means (clustering). Scores are in points. They rank readouts as
MTEB does, but are not MTEB's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import read_rows
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, v_measure_score
from torch import Tensor

PAIRS, TEXTS = 1000, 2000
SHOTS, POOL, TEST, PROBES = 16, 24, 1000, 5
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """A task's distinct texts, and the score in points of unit vectors (texts, D) of them."""

    name: str
    texts: list[str]
    score: Callable[[Tensor], float]


def load_tasks(
    folders: Sequence[Path], names: Sequence[str] | None = None, seed: int = 0
) -> list[Task]:
    """Return every task in some folders, those of a folder in alphabetical order."""
    places = [place for folder in folders for place in sorted(folder.iterdir()) if place.is_dir()]
    places = [place for place in places if names is None or place.name in names]
    return [_load(place, np.random.default_rng([seed, i])) for i, place in enumerate(places)]


def _load(place: Path, rng: np.random.Generator) -> Task:
    name, rows = place.name, read_rows(place.parent, place.name, "test")
    if "query" in rows[0]:
        return _reranking(name, rows)
    if "sentence1" in rows[0]:
        return _pairs(name, rows, rng)
    if "sentences" in rows[0]:
        return _clustering(name, rows[0], rng)
    return _classification(name, rows, read_rows(place.parent, place.name, "train"), rng)


def _index(texts: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    distinct = list(dict.fromkeys(texts))
    return distinct, {text: i for i, text in enumerate(distinct)}


def _pairs(name: str, rows: Rows, rng: np.random.Generator) -> Task:
    if isinstance(rows[0]["sentence1"], list):  # one row that holds all pairs
        columns = ("sentence1", "sentence2", "labels")
        cells = zip(*(rows[0][column] for column in columns), strict=True)
        rows = [dict(zip(columns, row, strict=True)) for row in cells]
    rows = [rows[i] for i in rng.permutation(len(rows))[:PAIRS]]
    texts, at = _index([row[side] for row in rows for side in ("sentence1", "sentence2")])
    first, second = ([at[row[side]] for row in rows] for side in ("sentence1", "sentence2"))
    scored = "score" in rows[0]
    gold = [float(row["score"] if scored else row.get("labels", row.get("label"))) for row in rows]

    def score(vectors: Tensor) -> float:
        cosines = (vectors[first] * vectors[second]).sum(-1)
        if scored:
            return 100 * float(spearmanr(cosines, gold).statistic)
        return 100 * float(average_precision_score(gold, cosines))

    return Task(name, texts, score)


def _reranking(name: str, rows: Rows) -> Task:
    rows = [row for row in rows if row["positive"] and row["negative"]]
    texts, at = _index(
        [text for row in rows for text in (row["query"], *row["positive"], *row["negative"])]
    )

    def score(vectors: Tensor) -> float:
        values = []
        for row in rows:
            documents = [at[text] for text in (*row["positive"], *row["negative"])]
            gold = [1] * len(row["positive"]) + [0] * len(row["negative"])
            cosines = vectors[documents] @ vectors[at[row["query"]]]
            values.append(average_precision_score(gold, cosines))
        return 100 * float(np.mean(values))

    return Task(name, texts, score)


def _classification(name: str, test: Rows, train: Rows, rng: np.random.Generator) -> Task:
    test = [test[i] for i in rng.permutation(len(test))[:TEST]]
    classes = sorted({str(row["label"]) for row in train})
    pool: dict[str, list[int]] = {label: [] for label in classes}
    for i in rng.permutation(len(train)):
        if len(pool[str(train[i]["label"])]) < POOL:
            pool[str(train[i]["label"])].append(int(i))
    draws = [
        [i for rows in pool.values() for i in rng.permutation(rows)[:SHOTS]] for _ in range(PROBES)
    ]
    used = sorted({i for drawn in draws for i in drawn})
    texts, at = _index([row["text"] for row in test] + [train[i]["text"] for i in used])

    def labels(rows: Rows) -> Tensor:
        return torch.tensor([classes.index(str(row["label"])) for row in rows])

    def score(vectors: Tensor) -> float:
        shares = []
        tested = vectors[[at[row["text"]] for row in test]]
        for drawn in draws:
            rows = [train[i] for i in drawn]
            shown = vectors[[at[row["text"]] for row in rows]]
            predicted = _probe(shown, labels(rows), tested)
            shares.append(float((predicted == labels(test)).double().mean()))
        return 100 * float(np.mean(shares))

    return Task(name, texts, score)


def _probe(train: Tensor, label: Tensor, test: Tensor) -> Tensor:
    """Return the classes by a ridge probe, penalty 0.1 of the mean squared length."""
    mean = train.mean(0)
    train, test = (train - mean).double(), (test - mean).double()
    target = torch.nn.functional.one_hot(label).double()
    gram = train @ train.T
    penalty = 0.1 * gram.diagonal().mean() * torch.eye(len(label), dtype=gram.dtype)
    dual = torch.linalg.solve(gram + penalty, target - target.mean(0))
    return (test @ train.T @ dual).argmax(-1)


def _clustering(name: str, row: dict[str, Any], rng: np.random.Generator) -> Task:
    keep = rng.permutation(len(row["sentences"]))[:TEXTS]
    labels = {row["sentences"][i]: str(row["labels"][i]) for i in keep}
    gold = list(labels.values())

    def score(vectors: Tensor) -> float:
        found = [_k_means(vectors, len(set(gold)), seed) for seed in range(3)]
        return 100 * float(np.mean([v_measure_score(gold, clusters) for clusters in found]))

    return Task(name, list(labels), score)


def _k_means(vectors: Tensor, k: int, seed: int, steps: int = 40) -> Tensor:
    """Return the clusters (texts,) of unit vectors; the first means are drawn as in k-means++."""
    start = torch.Generator().manual_seed(seed)
    chosen = [int(torch.randint(len(vectors), (1,), generator=start))]
    noise = torch.rand(k, len(vectors), generator=start)
    near = vectors @ vectors[chosen[0]]
    for i in range(1, k):
        weight = (1 - near).clamp_min(0) + 1e-9
        drawn = int((weight.log() - (-noise[i].clamp_min(1e-12).log()).log()).argmax())
        chosen.append(drawn)
        near = torch.maximum(near, vectors @ vectors[drawn])
    means = vectors[chosen]
    clusters = torch.zeros(len(vectors), dtype=torch.long)
    for _ in range(steps):
        nearest = (means.square().sum(-1) - 2 * vectors @ means.T).argmin(-1)
        if bool((nearest == clusters).all()):
            break
        clusters = nearest
        member = torch.nn.functional.one_hot(clusters, k).to(vectors.dtype)
        count = member.sum(0)[:, None]
        means = torch.where(count > 0, member.T @ vectors / count.clamp_min(1), means)
    return clusters
