"""What `layerscope improve` is worth: the chosen reading against the baseline's and the judge, on tasks
whose labels it does not see.

    python benchmarks/improve.py smollm2-135m --data ../shared/data/mteb
    python benchmarks/improve.py gemma3-270m --judge none --budget 0.3 --csv gemma.csv

`improve` gets a sample of a task's texts without labels. Then all texts of the task are scored with
the labels that were hidden: as the model reads them baseline (last layer, mean of the tokens), as
`improve` chose, and by the judge. Scores are quick stand-ins for MTEB's own, in points: Spearman of
cosines (STS), average precision of cosines (pairs), average precision per query (reranking), ridge
probes with 16 examples per class (classification), V-measure of k-means (clustering). They rank
readouts as MTEB does, but are not MTEB's numbers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from common import make_parser, read_rows
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, v_measure_score
from torch import Tensor

import layerscope
from layerscope.models import LoadedModel, load

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


def score(task: Task, vectors: np.ndarray) -> float:
    """The score of vectors (texts, D) of a task's texts, in points."""
    rows = torch.nn.functional.normalize(torch.as_tensor(vectors, dtype=torch.float32), dim=-1)
    return task.score(rows)


def measure(
    task: Task, model: LoadedModel, judge: LoadedModel | str, args: argparse.Namespace
) -> dict[str, str | float]:
    """A row of the table: the scores of a task, and what was chosen."""
    picked = np.random.default_rng([args.seed, len(task.texts)]).permutation(len(task.texts))
    sample = [task.texts[i] for i in picked[: args.texts]]
    start = time.perf_counter()
    better = layerscope.improve(
        model, sample, judge=judge, budget=args.budget, sample=args.texts, seed=args.seed,
        max_length=args.max_length, progress=False,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    baseline = layerscope.encode(model, task.texts, max_length=args.max_length)
    row: dict[str, str | float] = {
        "model": model.name,
        "task": task.name,
        "baseline": score(task, baseline),
        "improved": score(task, better.encode(task.texts)),
        "judge": np.nan if isinstance(judge, str) else score(task, layerscope.encode(judge, task.texts)),
        "layer": better.choice.layer,
        "readout": str(better.choice.readout),
        "cost": better.manifest["evidence"].get("relative_cost", 1.0),
        "seconds": seconds,
    }  # fmt: skip
    print(
        f"{task.name:32}{row['baseline']:8.1f}{row['improved']:10.1f}{row['judge']:8.1f}{row['cost']:7.2f} ×"
        f"{seconds:8.0f} s  layer {row['layer']}, {row['readout']}",
        flush=True,
    )
    return row


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--judge", default="minilm-l6", help="a sentence encoder, or none")
    parser.add_argument("--budget", type=float)
    parser.add_argument("--data", type=Path, nargs="+", default=[Path("../shared/data/mteb")])
    parser.add_argument("--tasks", nargs="*")
    parser.add_argument("--texts", type=int, default=600, help="texts that improve sees")
    parser.add_argument("--max-length", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write the rows here")
    args = parser.parse_args()
    model = load(args.model)
    judge = args.judge if args.judge == "none" else load(args.judge)
    print(f"{'task':32}{'baseline':>8}{'improved':>10}{'judge':>8}{'cost':>9}")
    rows = [
        measure(task, model, judge, args) for task in load_tasks(args.data, args.tasks, args.seed)
    ]
    means = [
        float(np.mean([float(row[name]) for row in rows]))
        for name in ("baseline", "improved", "judge")
    ]
    print(f"{f'mean of {len(rows)} tasks':32}{means[0]:8.1f}{means[1]:10.1f}{means[2]:8.1f}")
    if args.csv is not None:
        pd.DataFrame(rows).to_csv(args.csv, index=False)


if __name__ == "__main__":
    main()
