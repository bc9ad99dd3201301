"""What a sentence encoder keeps with fewer blocks, on tasks whose scored texts fit nothing.

    python benchmarks/blocks.py --data-dir DIR --out benchmarks/results/blocks   # DIR/<Task>/*.jsonl.gz
    python benchmarks/blocks.py --data-dir DIR --model FOLDER --sizes 6,4

For every task the blocks are chosen and refitted on up to 1,500 of its other texts, or on texts of
six other sources. Classes: accuracy of a logistic regression on 8 examples of each, mean of three
draws, 700 texts. Pairs: Spearman's ρ of the cosines, 500 pairs. WikiQA: mean average precision, 120
queries; blocks are chosen by the rankings of other queries. Beside the choice of the search: the
last blocks cut, evenly spaced blocks, the greedy choice of blocks as they are, and training.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common import commit, make_parser, peak_mb, read_rows
from few_labels import logistic
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from layerscope.blocks import Encoder, Variant, refit, search
from layerscope.blocks.job import SEARCHED
from layerscope.blocks.refit import find_kind
from layerscope.blocks.search import TextSet, choose_blocks, measure_agreement
from layerscope.blocks.train import TrainRequest, train_blocks
from layerscope.models.source import resolve
from layerscope.progress import Silent

CLASSES = ("Banking77Classification", "EmotionClassification", "MassiveScenarioClassification")
PAIRS = ("STSBenchmark", "STS14")
RERANKING = "WikiQA_reranking"
OTHERS = ("RedditClustering", "StackExchangeClustering", "TwentyNewsgroupsClustering",
          "TwitterSemEval2015", "WikiQA_reranking", "STS12")  # fmt: skip
SHOTS, DRAWS, TEXTS, SCORED_PAIRS, QUERIES, OWN = 8, 3, 700, 500, 120, 1500


@dataclass
class Task:
    """A task: its scored rows, and other texts of the same kind."""

    name: str
    rows: list[dict[str, Any]]
    own: TextSet

    def texts(self) -> list[str]:
        """Return every scored text once."""
        return list(dict.fromkeys(text for row in self.rows for text in texts_of(row)))


FIELDS = ("text", "sentence1", "sentence2", "query", "positive", "negative", "sentences")


def texts_of(row: dict[str, Any], fields: Sequence[str] = FIELDS) -> list[str]:
    """Return all texts of a row."""
    values = [row.get(name, ()) for name in fields]
    return [text for one in values for text in ([one] if isinstance(one, str) else one) if text]


def load_task(name: str, data_dir: Path) -> Task:
    """Divide a task into scored rows and other texts."""
    rng = np.random.default_rng(0)
    test = read_rows(data_dir, name, "test")
    test = [test[i] for i in rng.permutation(len(test))]
    count = TEXTS if name in CLASSES else SCORED_PAIRS if name in PAIRS else QUERIES
    try:
        more = read_rows(data_dir, name, "train")
    except SystemExit:
        more = []
    task = Task(name, test[:count], TextSet(()))
    seen = set(task.texts())
    parts = []
    for fields in (("query",), FIELDS):
        own = {t: None for row in [*more, *test[count:]] for t in texts_of(row, fields)}
        left = [text for text in own if text not in seen]
        seen |= set(left)
        parts.append([left[i] for i in rng.permutation(len(left))][:OWN])
    task.own = TextSet.of(parts[1], parts[0])
    return task


def other_texts(data_dir: Path, without: str) -> list[str]:
    """Return texts of other sources, as many of each."""
    rng, found = np.random.default_rng(1), []
    sources = [name for name in OTHERS if name != without]
    for name in sources:
        texts = [text for row in read_rows(data_dir, name, "test") for text in texts_of(row)]
        texts = list(dict.fromkeys(text for text in texts if text.strip()))
        found += [texts[i] for i in rng.permutation(len(texts))[: 2 * OWN // len(sources)]]
    return [found[i] for i in rng.permutation(len(found))]


def score(task: Task, vectors: dict[str, np.ndarray]) -> float:
    """Return the task's score × 100."""
    if task.name in PAIRS:
        cosines = [float(vectors[r["sentence1"]] @ vectors[r["sentence2"]]) for r in task.rows]
        return 100 * float(spearmanr(cosines, [row["score"] for row in task.rows]).statistic)
    if task.name == RERANKING:
        return 100 * float(np.mean([average_precision(row, vectors) for row in task.rows]))
    labels = np.array([str(row["label"]) for row in task.rows])
    rows = np.stack([vectors[row["text"]] for row in task.rows])
    right = []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        members = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
        train = np.concatenate([m[: min(SHOTS, len(m) // 2)] for m in members])
        test = np.setdiff1d(np.arange(len(labels)), train)
        right.append(np.mean(logistic(rows[train], rows[test], labels[train]) == labels[test]))
    return 100 * float(np.mean(right))


def average_precision(row: dict[str, Any], vectors: dict[str, np.ndarray]) -> float:
    """Return the average precision of one query's ranking."""
    documents = [*row["positive"], *row["negative"]]
    relevant = np.arange(len(documents)) < len(row["positive"])
    cosines = [float(vectors[row["query"]] @ vectors[text]) for text in documents]
    return float(average_precision_score(relevant, cosines))


class Study:
    """One task: how its score changes with the blocks that are kept."""

    def __init__(
        self, encoder: Encoder, task: Task, others: list[str], minutes: float = 10
    ) -> None:
        self.encoder, self.task, self.kind = encoder, task, find_kind(encoder)
        self.minutes = minutes
        texts = task.texts()
        self.texts, self.batches = texts, encoder.batches(texts)
        self.own, self.others = task.own, TextSet.of(others)
        self.whole = encoder.encode(encoder.whole, self.batches)
        self.rows: list[dict[str, Any]] = []
        self.add("whole", encoder.n_blocks, encoder.whole)

    def add(self, way: str, size: int, variant: Variant, seconds: float = 0.0) -> None:
        """Score a variant."""
        vectors = self.encoder.encode(variant, self.batches)
        self.rows.append(
            {
                "task": self.task.name,
                "way": way,
                "blocks": size,
                "kept": list(variant.blocks),
                "score": score(self.task, dict(zip(self.texts, vectors, strict=True))),
                "agreement": measure_agreement(self.whole, vectors, draws=1)[0],
                "seconds": seconds,
            }
        )

    def run(self, sizes: Sequence[int]) -> None:
        """Choose, refit and score for every size."""
        encoder, count = self.encoder, self.encoder.n_blocks
        pools = {"own": self.own, "other": self.others}
        batches = {name: encoder.batches(pool.texts) for name, pool in pools.items()}
        searched, others = self.own.cut(min(SEARCHED, len(self.own) // 2))
        start = time.perf_counter()
        steps = search(
            encoder, encoder.batches(searched.texts), min(sizes), queries=searched.queries
        )
        took = time.perf_counter() - start
        greedy = {len(step.blocks): step.blocks for step in steps}
        for size in sizes:
            even = np.unique(np.linspace(0, count - 1, size).round().astype(int)).tolist()
            start = time.perf_counter()
            few = others.first(SEARCHED)
            chosen = choose_blocks(encoder, steps, size, self.kind, searched, few)
            chose = took + time.perf_counter() - start
            self.add("last blocks cut", size, encoder.variant(range(size)))
            self.add("greedy, as they are", size, encoder.variant(greedy[size]), took)
            for way, blocks, texts in (
                ("evenly spaced, refitted, own texts", even, "own"),
                ("greedy, refitted, own texts", greedy[size], "own"),
                ("chosen and refitted, own texts", chosen, "own"),
                ("chosen and refitted, other texts", chosen, "other"),
            ):
                start = time.perf_counter()
                done = refit(encoder, encoder.variant(blocks), batches[texts], self.kind)
                self.add(way, size, done.variant, chose + time.perf_counter() - start)
                if way.startswith("chosen and refitted"):
                    self.train(f"{way}, then trained", size, done.variant, pools[texts])

    def train(self, way: str, size: int, variant: Variant, texts: TextSet) -> None:
        """Train a variant and score it."""
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            request = TrainRequest(Path(folder), minutes=self.minutes)
            done = train_blocks(self.encoder, variant, texts, request, 0, Silent())
        self.add(way, size, done.variant, time.perf_counter() - start)

    def numbers_of_texts(self, size: int, counts: Sequence[int]) -> None:
        """Refit on fewer and more of the task's own texts."""
        encoder = self.encoder
        few = encoder.batches(self.own.first(SEARCHED).texts)
        steps = search(encoder, few, size)
        for count in [count for count in counts if count <= len(self.own)]:
            start = time.perf_counter()
            batches = encoder.batches(self.own.first(count).texts)
            done = refit(encoder, encoder.variant(steps[-1].blocks), batches, self.kind)
            self.add(
                f"refitted on {count:,} texts", size, done.variant, time.perf_counter() - start
            )


def shares(rows: Sequence[dict[str, Any]], tasks: Sequence[str]) -> list[str]:
    """Return a table of shares of the whole encoder's mean, worst task in brackets."""
    table = pd.DataFrame(rows)
    whole = table[table["way"] == "whole"].set_index("task")["score"]
    table = table[(table["way"] != "whole") & table["task"].isin(tasks)]
    sizes = sorted(set(table["blocks"]), reverse=True)
    lines = ["| | " + " | ".join(f"{size} blocks" for size in sizes) + " |"]
    lines.append("|---" * (len(sizes) + 1) + "|")
    for way, own in table.groupby("way", sort=False):
        cells = []
        for size in sizes:
            scores = own[own["blocks"] == size].set_index("task")["score"]
            before = whole[scores.index]
            mean, worst = scores.sum() / before.sum(), (scores / before).min()
            cells.append(f"{100 * mean:.1f} ({100 * worst:.1f})")
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    return lines


def by_agreement(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a table: what share of the score goes with which agreement."""
    whole = {row["task"]: row["score"] for row in rows if row["way"] == "whole"}
    lines = ["| agreement | share of the score, % | candidates |", "|---|---|---|"]
    for low in (0.95, 0.9, 0.85, 0.8):
        found = [100 * row["score"] / whole[row["task"]] for row in rows
                 if row["way"] != "whole" and low <= row["agreement"] < low + 0.05]  # fmt: skip
        if found:
            lines.append(
                f"| {low:.2f} to {low + 0.05:.2f} | {min(found):.0f} to {max(found):.0f} | {len(found)} |"
            )
    return lines


def main() -> None:
    """Command line of the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--model", default="minilm-l6")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="5,4,3,2", help="numbers of blocks, comma-separated")
    parser.add_argument("--tasks", default=",".join((*CLASSES, *PAIRS, RERANKING)))
    parser.add_argument("--minutes", type=float, default=10, help="of each training, at most")
    parser.add_argument("--numbers", action="store_true", help="also by the number of texts")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sizes = [int(size) for size in given.sizes.split(",")]
    encoder = Encoder.open(resolve(given.model).path, given.device, "float32", max_length=96)
    rows, more = [], []
    for name in given.tasks.split(","):
        task = load_task(name, given.data_dir)
        study = Study(encoder, task, other_texts(given.data_dir, name), given.minutes)
        study.run(sizes)
        rows += study.rows
        print(f"{name}: {study.rows[0]['score']:.1f}, {len(study.own)} own texts", flush=True)
        if name == CLASSES[0] and given.numbers:
            extra = Study(encoder, task, [])
            extra.numbers_of_texts(encoder.n_blocks // 2, (200, 500, 1000, 1500))
            more = extra.rows
    five = [name for name in (*CLASSES, *PAIRS) if any(row["task"] == name for row in rows)]
    scored = [row for row in rows if row["task"] in five]
    lines = [
        f"# {given.model} with fewer blocks",
        "",
        f"`python benchmarks/blocks.py --data-dir DIR --model {given.model}` at {commit()}, device {given.device}, one seed.",
        f"Texts are cut to 96 tokens. Peak memory {peak_mb():,.0f} MB.",
        "",
        f"Share of the whole encoder's mean score in percent, worst task in brackets ({', '.join(five)}):",
        "",
        *shares(rows, five),
        "",
        "The same tasks and candidates by their agreement on the scored texts:",
        "",
        *by_agreement(scored),
    ]
    if any(row["task"] == RERANKING for row in rows):
        lines += ["", "The same for the ranking of answers (WikiQA, mean average precision):", ""]
        lines += shares(rows, [RERANKING])
    if more:
        lines += ["", f"Half of the blocks on {CLASSES[0]}, by the number of own texts:", ""]
        lines += shares(more, [CLASSES[0]])
    print("\n".join(lines))
    if given.out:
        given.out.with_suffix(".json").write_text(
            json.dumps({"rows": rows, "texts": more}, indent=1)
        )
        given.out.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
