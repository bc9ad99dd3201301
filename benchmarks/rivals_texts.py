"""What other tools give on the same texts: model2vec, WordLlama, SetFit, plain
sentence-transformers.

    pip install 'model2vec[distill]' setfit wordllama
    python benchmarks/rivals_texts.py --data-dir MTEB

`improve` sees `--texts` training texts without labels. Of `--test` test texts that nobody has seen:
how often the nearest other text has the same label, and one of the three nearest; and how often a
logistic regression on the vectors of 8 or 16 labeled texts per class names it (SetFit: its own
head, which is one). Texts per second by turns, on one thread, and the megabytes of the files.
SetFit trains for one whole epoch with its defaults where that is at most `EPOCH` steps, else for
one of its own `undersampling` (as many unlike pairs as like ones); where that takes more than
`MOST`, so many labels are not tried. Of the domains, Banking77 alone
had a part in the choice of `improve`'s settings.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import make_parser, read_rows

import layerscope
from layerscope.core.heads import unit
from layerscope.exporting.pipeline import load_folder
from layerscope.models.source import resolve

RESULT = Path(__file__).parent / "results" / "rivals-texts.md"
SHOTS, TIMED, ROUNDS, BATCH, EPOCH, MOST = (8, 16), 16, 3, 16, 150, 400
DOMAINS = ("Banking77Classification", "MassiveScenarioClassification", "TrecQuestions")
Rows = list[tuple[str, str]]


def rows_of(task: str, split: str, data_dir: Path, rng: np.random.Generator) -> Rows:
    """Return distinct texts and their labels, in random order."""
    rows = [row for row in read_rows(data_dir, task, split) if row["text"].strip()]
    labels = {row["text"]: str(row.get("label_text", row["label"])) for row in rows}
    texts = list(labels)
    return [(texts[i], labels[texts[i]]) for i in rng.permutation(len(texts))]


@dataclass
class Way:
    """A function from texts to vectors, its size in megabytes, and what names classes itself,
    after how many labels of each."""

    encode: Callable[[list[str]], Any]
    size: float
    note: str = ""
    predict: Any = None
    shots: int = 0


class Domain:
    """The texts of a task: seen ones without labels, labeled ones, unseen ones and their labels."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        rng = np.random.default_rng(0)
        train = rows_of(name, "train", args.data_dir, rng)
        test = rows_of(name, "test", args.data_dir, rng)[: args.test]
        classes = sorted({label for _, label in train})
        by_class = {label: [row for row in train if row[1] == label] for label in classes}
        labeled = {n: [row for rows in by_class.values() for row in rows[:n]] for n in SHOTS}
        self.name, self.seen = name, [text for text, _ in train[: args.texts]]
        self.labeled = {
            n: rows for n, rows in labeled.items() if epoch(rows, "undersampling") <= MOST
        }
        self.texts = [text for text, _ in test]
        self.truth = np.array([label for _, label in test])


def megabytes(folder: Path) -> float:
    """Return the size of a folder's weights."""
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e6


def read(folder: Path, note: str = "") -> Way:
    """Return a sentence-transformers folder as it says itself."""
    body = load_folder(folder)
    return Way(lambda texts: body.encode(texts, show_progress_bar=False), megabytes(folder), note)


def static(folder: Path, out: Path) -> Way:
    """Return model2vec's distillation with its defaults: a vector per token of the vocabulary."""
    from model2vec.distill import distill

    start = time.perf_counter()
    model = distill(str(folder))
    note = f"made in {time.perf_counter() - start:.0f} s"
    model.save_pretrained(str(out))
    return Way(model.encode, megabytes(out), note)


def published() -> Way:
    """Return WordLlama's vectors of tokens, which come with its package."""
    import wordllama

    place = Path(wordllama.__file__).parent  # its tokenizer is there
    model = wordllama.WordLlama.load(cache_dir=place, disable_download=True)
    return Way(model.embed, model.embedding.nbytes / 1e6)


def epoch(labeled: Rows, strategy: str) -> int:
    """Return the steps of SetFit's epoch: like and unlike pairs, as many of each as there are of
    the more (or the fewer)."""
    counts = Counter(label for _, label in labeled).values()
    like = sum(n * (n + 1) // 2 for n in counts)
    unlike = (len(labeled) ** 2 - sum(n * n for n in counts)) // 2
    most = max if strategy == "oversampling" else min
    return -(-2 * most(like, unlike) // BATCH)


def setfit(folder: Path, labeled: Rows, shots: int, out: Path) -> Way:
    """Return SetFit's model after an epoch on a few labels."""
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments

    strategy = "oversampling" if epoch(labeled, "oversampling") <= EPOCH else "undersampling"
    start = time.perf_counter()
    model = SetFitModel.from_pretrained(str(folder))
    texts, labels = zip(*labeled, strict=True)
    settings = TrainingArguments(
        batch_size=BATCH,
        num_epochs=1,
        sampling_strategy=strategy,
        report_to="none",
        output_dir=str(out / "steps"),
        seed=0,
        save_strategy="no",
    )
    data = Dataset.from_dict({"text": list(texts), "label": list(labels)})
    Trainer(model=model, args=settings, train_dataset=data).train()
    seconds = time.perf_counter() - start
    model.save_pretrained(str(out))
    way = read(out, f"{strategy}, {epoch(labeled, strategy)} steps, {seconds:.0f} s")
    way.predict, way.shots = model.predict, shots
    return way


def ways_of(domain: Domain, work: Path, args: argparse.Namespace) -> Iterator[tuple[str, Way]]:
    """Yield every way to vectors of a domain's texts."""
    minilm = Path(resolve("minilm-l6").pipeline or resolve("minilm-l6").path)

    def improved(name: str, **options: Any) -> Way:
        start = time.perf_counter()
        layerscope.improve(
            "smollm2-135m",
            domain.seen,
            out=work / name,
            sample=args.texts,
            progress=False,
            **options,
        )
        return read(work / name, f"made in {time.perf_counter() - start:.0f} s")

    layerscope.export("smollm2-135m", -1, out=work / "baseline")
    yield "SmolLM2 baseline (last layer, mean)", read(work / "baseline")
    yield "SmolLM2, `improve`", improved("better")
    yield "SmolLM2, `improve --budget 0.35`", improved("light", budget=0.35)
    yield "MiniLM, plain sentence-transformers", read(minilm)
    yield "MiniLM, model2vec", static(minilm, work / "static")
    yield "WordLlama, as published", published()
    for shots, labeled in domain.labeled.items():
        name = f"MiniLM, SetFit, {shots} labels per class"
        yield name, setfit(minilm, labeled, shots, work / f"setfit-{shots}")


def right(vectors: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Return, of unit vectors, the share of texts whose nearest other has their label, and of those
    with one among the three nearest."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    near = labels[np.argsort(-cosines, axis=1)[:, :3]] == labels[:, None]
    return 100 * float(near[:, 0].mean()), 100 * float(near.any(1).mean())


def row(domain: Domain, name: str, way: Way, speed: float) -> str:
    """Return a line of the table."""
    from sklearn.linear_model import LogisticRegression

    def vectors(texts: list[str]) -> np.ndarray:
        return unit(np.asarray(way.encode(texts)).astype(np.float64))

    unseen = vectors(domain.texts)
    shares = dict.fromkeys(SHOTS, "")
    for shots, labeled in domain.labeled.items():
        if way.predict is not None and way.shots != shots:
            continue
        if way.predict is None:
            known = vectors([text for text, _ in labeled])
            model = LogisticRegression(max_iter=1000, C=10)
            named = model.fit(known, [label for _, label in labeled]).predict(unseen)
        else:
            named = np.asarray(way.predict(domain.texts))
        shares[shots] = f"{100 * (named == domain.truth).mean():.1f}"
    first, three = right(unseen, domain.truth)
    found = f"{first:.1f} | {three:.1f} | {' | '.join(shares.values())}"
    return f"| {domain.name} | {name} | {found} | {speed:,.0f} | {way.size:.0f} | {way.note} |"


def main() -> None:
    """Measure every way and write the table."""
    parser = make_parser(__doc__)
    parser.add_argument("--data-dir", type=Path, default=Path("mteb"))
    parser.add_argument("--tasks", nargs="+", default=list(DOMAINS))
    parser.add_argument("--texts", type=int, default=600)
    parser.add_argument("--test", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    rows: list[str] = []
    for task in args.tasks:
        domain = Domain(task, args)
        with tempfile.TemporaryDirectory() as work:
            ways = dict(ways_of(domain, Path(work), args))
            speeds: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(ROUNDS):
                for name, way in ways.items():
                    start = time.perf_counter()
                    way.encode(domain.texts[:TIMED])
                    speeds[name].append(TIMED / (time.perf_counter() - start))
            for name, way in ways.items():
                rows.append(row(domain, name, way, statistics.median(speeds[name])))
                print(rows[-1], flush=True)
    command = f"`python benchmarks/rivals_texts.py --texts {args.texts} --test {args.test}`"
    lines = [
        "# Other ways to vectors, on the same texts",
        "",
        f"{command} at layerscope {layerscope.__version__}. One thread of a machine that did other "
        f"work too (load {os.getloadavg()[0]:.0f} at the end).",
        "",
        "| texts | way | nearest right, % | one of three, % | class by 8 labels, % | by 16 | texts per second | MB | made |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    RESULT.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
