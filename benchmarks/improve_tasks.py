"""The fifteen tasks of `benchmarks/improve.py`: their texts, and the score of vectors of those
texts, for many layers at once.

Quick stand-ins for MTEB's own scoring, so that thousands of candidates can be scored: Spearman of
cosines (STS), average precision of cosines (pairs), average precision per query (reranking), ridge
probes with 16 examples per class (classification), V-measure of k-means (clustering). Scores are in
points. They rank readouts as MTEB does, but are not MTEB's numbers.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

PAIRS, TEXTS = 1000, 2000
SHOTS, POOL, TEST, PROBES = 16, 24, 1000, 5
TUNED = (
    "STSBenchmark", "STS12", "STS14", "Banking77Classification", "EmotionClassification", "RedditClustering",
    "TwitterSemEval2015",
)  # fmt: skip
"""The tasks that settings were looked at on, with SmolLM2; all others, and all of Gemma, are
reported with the same settings."""

Score = Callable[[Tensor], Tensor]
"""From unit vectors (layers, texts, D) of the task's texts to scores (layers,)."""

Example = tuple[tuple[str, ...], Any]
"""A text or a pair, and its class or score, as `layerscope.selection.labels` takes them."""


@dataclass(frozen=True)
class Task:
    """A task's distinct texts, the score of vectors of them, and labeled examples in random order.

    `kind` is what the examples are: texts with classes, pairs that belong together or not, or pairs
    with a score.
    """

    name: str
    texts: list[str]
    score: Score
    kind: str
    examples: list[Example]


def load_tasks(
    folders: Sequence[Path], names: Sequence[str] | None = None, seed: int = 0
) -> list[Task]:
    """Every task in some folders, those of a folder in alphabetical order."""
    places = [place for folder in folders for place in sorted(folder.iterdir())]
    places = [
        place for place in places if place.is_dir() and (names is None or place.name in names)
    ]
    return [_load(place, np.random.default_rng([seed, i])) for i, place in enumerate(places)]


def _rows(place: Path, split: str) -> list[dict]:
    file = next(file for file in sorted(place.glob("*.jsonl.gz")) if file.name.startswith(split))
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def _load(place: Path, rng: np.random.Generator) -> Task:
    name, rows = place.name, _rows(place, "test")
    if "query" in rows[0]:
        return _reranking(name, rows, rng)
    if "sentence1" in rows[0]:
        return _pairs(name, rows, rng)
    if "sentences" in rows[0]:
        return _clustering(name, rows, rng)
    return _classification(name, rows, _rows(place, "train"), rng)


def _index(texts: Sequence[str]) -> tuple[list[str], dict[str, int]]:
    distinct = list(dict.fromkeys(texts))
    return distinct, {text: i for i, text in enumerate(distinct)}


def _ranks(values: np.ndarray) -> np.ndarray:
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[group]


def _pairs(name: str, rows: list[dict], rng: np.random.Generator) -> Task:
    if "labels" in rows[0] and isinstance(
        rows[0]["sentence1"], list
    ):  # one row that holds all pairs
        rows = [
            {"sentence1": a, "sentence2": b, "labels": c}
            for a, b, c in zip(
                rows[0]["sentence1"], rows[0]["sentence2"], rows[0]["labels"], strict=True
            )
        ]
    keep = rng.permutation(len(rows))[:PAIRS]
    rows = [rows[i] for i in keep]
    texts, at = _index([row[side] for row in rows for side in ("sentence1", "sentence2")])
    first, second = ([at[row[side]] for row in rows] for side in ("sentence1", "sentence2"))
    pairs = [(row["sentence1"], row["sentence2"]) for row in rows]
    if "score" in rows[0]:
        given = [float(row["score"]) for row in rows]
        gold = torch.tensor(_ranks(np.array(given)))
        examples = list(zip(pairs, given, strict=True))
        return Task(
            name,
            texts,
            lambda v: 100 * _spearman(_cosines(v, first, second), gold),
            "scores",
            examples,
        )
    target = torch.tensor([float(row.get("labels", row.get("label"))) for row in rows])
    examples = [(pair, int(label)) for pair, label in zip(pairs, target.tolist(), strict=True)]
    return Task(
        name,
        texts,
        lambda v: 100 * _average_precision(_cosines(v, first, second), target),
        "pairs",
        examples,
    )


def _cosines(vectors: Tensor, first: list[int], second: list[int]) -> Tensor:
    return (vectors[:, first] * vectors[:, second]).sum(-1)


def _spearman(values: Tensor, gold: Tensor) -> Tensor:
    ranks = values.argsort(-1).argsort(-1).double()
    gold = gold.to(values.device)
    a, b = ranks - ranks.mean(-1, keepdim=True), gold - gold.mean()
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm())


def _average_precision(values: Tensor, target: Tensor) -> Tensor:
    hits = target.to(values.device)[values.argsort(-1, descending=True)].double()
    place = torch.arange(1, values.shape[-1] + 1, device=values.device)
    return (hits * hits.cumsum(-1) / place).sum(-1) / hits.sum(-1)


def _reranking(name: str, rows: list[dict], rng: np.random.Generator) -> Task:
    texts, at = _index(
        [text for row in rows for text in (row["query"], *row["positive"], *row["negative"])]
    )
    queries = [
        (
            at[row["query"]],
            [at[t] for t in (*row["positive"], *row["negative"])],
            len(row["positive"]),
        )
        for row in rows
        if row["positive"] and row["negative"]
    ]

    def score(vectors: Tensor) -> Tensor:
        total = torch.zeros(len(vectors), dtype=torch.float64, device=vectors.device)
        for query, documents, positive in queries:
            values = torch.einsum("ld,lnd->ln", vectors[:, query], vectors[:, documents])
            target = torch.zeros(len(documents))
            target[:positive] = 1
            total += _average_precision(values, target)
        return 100 * total / len(queries)

    told = [((row["query"], text), 1) for row in rows for text in row["positive"]]
    told += [((row["query"], text), 0) for row in rows for text in row["negative"]]
    return Task(name, texts, score, "pairs", [told[i] for i in rng.permutation(len(told))])


def _classification(
    name: str, test: list[dict], train: list[dict], rng: np.random.Generator
) -> Task:
    test = [test[i] for i in rng.permutation(len(test))[:TEST]]
    classes = sorted({str(row["label"]) for row in train})
    number = {label: i for i, label in enumerate(classes)}
    pool: dict[str, list[int]] = {label: [] for label in classes}
    for i in rng.permutation(len(train)):
        if len(pool[str(train[i]["label"])]) < POOL:
            pool[str(train[i]["label"])].append(int(i))
    draws = [
        [i for some in pool.values() for i in rng.permutation(some)[:SHOTS]] for _ in range(PROBES)
    ]
    used = sorted({i for kept in draws for i in kept})
    texts, at = _index([row["text"] for row in test] + [train[i]["text"] for i in used])
    gold = torch.tensor([number[str(row["label"])] for row in test])
    tested = [at[row["text"]] for row in test]
    probes = [
        (
            [at[train[i]["text"]] for i in kept],
            torch.tensor([number[str(train[i]["label"])] for i in kept]),
        )
        for kept in draws
    ]

    def score(vectors: Tensor) -> Tensor:
        right = [
            _probe(vectors[:, where], label, vectors[:, tested], gold, len(classes))
            for where, label in probes
        ]
        return 100 * torch.stack(right).mean(0)

    examples = [
        ((train[i]["text"],), str(train[i]["label"])) for i in rng.permutation(used)
    ]  # none of them is tested
    return Task(name, texts, score, "classification", examples)


def _probe(train: Tensor, label: Tensor, test: Tensor, gold: Tensor, classes: int) -> Tensor:
    """Accuracy (layers,) of a ridge probe, penalty 0.1 of the mean squared length."""
    mean = train.mean(1, keepdim=True)
    train, test = (train - mean).double(), (test - mean).double()
    target = torch.nn.functional.one_hot(label.to(train.device), classes).double()
    target = target - target.mean(0)
    gram = train @ train.transpose(1, 2)
    scale = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
    eye = torch.eye(len(label), dtype=gram.dtype, device=gram.device)
    dual = torch.linalg.solve(gram + 0.1 * scale * eye, target.expand(len(gram), -1, -1))
    told = (test @ train.transpose(1, 2) @ dual).argmax(-1)
    return (told == gold.to(told.device)).double().mean(-1)


def _clustering(name: str, rows: list[dict], rng: np.random.Generator) -> Task:
    row = rows[0]
    keep = rng.permutation(len(row["sentences"]))[:TEXTS]
    texts, at = _index([row["sentences"][i] for i in keep])
    labels = np.full(len(texts), -1)
    names = sorted({str(row["labels"][i]) for i in keep})
    for i in keep:
        labels[at[row["sentences"][i]]] = names.index(str(row["labels"][i]))
    gold = torch.tensor(labels)

    def score(vectors: Tensor) -> Tensor:
        return 100 * torch.stack(
            [_v_measure(_k_means(vectors, len(names), seed), gold) for seed in range(3)]
        ).mean(0)

    examples = [((row["sentences"][i],), str(row["labels"][i])) for i in keep]
    return Task(name, texts, score, "classification", examples)


def _k_means(vectors: Tensor, k: int, seed: int, steps: int = 40) -> Tensor:
    """Clusters (layers, texts) of unit vectors; the first means are texts far from each other
    (k-means++ without chance)."""
    layers, n, _ = vectors.shape
    start = torch.Generator().manual_seed(seed)
    chosen = torch.randint(n, (layers, 1), generator=start).to(vectors.device)
    rows = torch.arange(layers, device=vectors.device)[:, None]
    near = (vectors @ vectors[rows, chosen].transpose(1, 2)).squeeze(-1)
    noise = torch.rand(k, n, generator=start).to(vectors.device)
    for i in range(1, k):
        weight = (1 - near).clamp_min(0) + 1e-9
        nxt = (weight.log() - (-noise[i].clamp_min(1e-12).log()).log()).argmax(
            -1, keepdim=True
        )  # a draw by weight
        chosen = torch.cat([chosen, nxt], 1)
        near = torch.maximum(near, (vectors @ vectors[rows, nxt].transpose(1, 2)).squeeze(-1))
    means = vectors[rows, chosen]
    told = torch.zeros(layers, n, dtype=torch.long, device=vectors.device)
    for _ in range(steps):
        distance = -2 * vectors @ means.transpose(1, 2) + means.square().sum(-1)[:, None]
        new = distance.argmin(-1)
        if bool((new == told).all()):
            break
        told = new
        member = torch.nn.functional.one_hot(told, k).to(vectors.dtype)
        count = member.sum(1).clamp_min(1e-9)[..., None]
        fresh = member.transpose(1, 2) @ vectors / count
        means = torch.where(count > 0.5, fresh, means)
    return told


def _v_measure(told: Tensor, gold: Tensor) -> Tensor:
    gold = gold.to(told.device)
    k, c = int(told.max()) + 1, int(gold.max()) + 1
    a, b = (
        torch.nn.functional.one_hot(told, k).double(),
        torch.nn.functional.one_hot(gold, c).double(),
    )
    joint = a.transpose(1, 2) @ b / told.shape[1]
    rows, columns = joint.sum(2), joint.sum(1)

    def entropy(p: Tensor) -> Tensor:
        return -(p * p.clamp_min(1e-30).log()).sum(-1)

    shared = entropy(rows) + entropy(columns) - entropy(joint.flatten(1))
    return 2 * shared / (entropy(rows) + entropy(columns)).clamp_min(1e-30)
