"""`make demo`: a better and lighter embedding model from one command, proved with hidden labels,
exported, explained."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from layerscope.capture import expand_sites
from layerscope.core.heads import unit
from layerscope.core.readout import Readout
from layerscope.core.templates import get_template
from layerscope.errors import LayerscopeError
from layerscope.evaluation.encode import TextEncoder
from layerscope.evaluation.tasks.catalogue import TASKS
from layerscope.improving import Improved, improve
from layerscope.improving.neighbors import neighbor_table
from layerscope.improving.terminal import print_improved
from layerscope.models import load
from layerscope.profiling import profile
from layerscope.report.drawing import save_figure
from layerscope.report.sections.profile import plot_profiles, print_run
from layerscope.report.sources import Block
from layerscope.report.write import write_report
from layerscope.terminal import Console

MODEL = "smollm2-135m"  # the Instruct model, its weights quantized to 4 bits in their source
TASK = "TrecQuestions"
TEXTS = 200  # of TREC's questions, which is enough to choose by, and a few minutes on two cores
GIVEN = 1500  # of the questions, all of which the choice is fitted on
BUDGET = 0.35  # of today's computation per text: a third of the blocks
UNSEEN = (
    600  # questions on which nothing is chosen or fitted; their neighbors are looked for among all
)
LENGTH = 64
SHOTS = 16
KINDS = (
    "an abbreviation",
    "a description",
    "a thing",
    "a person",
    "a place",
    "a number",
)  # in the order of the labels
PROFILE = ["prompt_entropy", "curvature", "dataset_entropy", "sink_ratio", "sink_first"]


def demo(out: Path, texts: int = TEXTS, profiled: int = 40) -> list[Path]:
    """Improve a model on unlabeled questions, prove it, load it, explain it; returns the files
    written, the report last."""
    console = Console(highlight=False)
    rows = TASKS.get(TASK).splits()["train"]
    labels = {row["text"]: int(row["label"]) for row in rows}
    questions = list(labels)
    unseen, given = questions[:UNSEEN], questions[UNSEEN : UNSEEN + GIVEN]
    console.print(
        f"\n[bold]1. Improve {MODEL}[/] on {len(given):,} questions without labels, at a third of the computation"
    )
    out.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame({"text": given, "asks for": [KINDS[labels[text]] for text in given]})
    table.to_csv(
        out / "questions.csv", index=False
    )  # what they ask for colors the map, and is not looked at
    # a second demo reads its vectors from the store, and writes the folder again
    better = improve(
        MODEL,
        out / "questions.csv",
        column="text",
        out=out / "better",
        sample=texts,
        max_length=LENGTH,
        budget=BUDGET,
        center_on="all",
        overwrite=True,
    )
    console.print(f"Encoding all {len(questions):,} questions, today and now", style="dim")
    today, now = timed(last_layer(MODEL), questions), timed(better.encode, questions)
    hidden, asked = np.array([labels[text] for text in questions]), len(unseen)
    shown = typical(today.vectors, now.vectors, hidden, asked)
    first = [*shown, *(i for i in range(len(questions)) if i not in set(shown))]
    better.neighbors = neighbor_table(
        [questions[i] for i in first], today.vectors[first], now.vectors[first]
    )
    better.manifest["examples"] = (
        f"Among all {len(questions):,} questions: five that nothing was fitted on, of the middle by what was gained"
    )
    print_improved(better, console)

    title = "The labels that were hidden: six kinds of answers"
    console.print(f"\n[bold]2. {title}[/]")
    same = [neighbor_accuracy(one.vectors, hidden, asked) for one in (today, now)]
    probe = [few_shot_accuracy(one.vectors[:asked], hidden[:asked]) for one in (today, now)]
    proved = (
        f"Of {asked:,} questions that nothing was fitted on, {same[0]:.1f} % have a nearest neighbor, among all "
        f"{len(questions):,} ({len(given):,} of them were fitted on), that asks for the same kind of answer today, "
        f"{same[1]:.1f} % now; a probe on {SHOTS} of each kind is right for {probe[0]:.1f} % of the others "
        f"today, {probe[1]:.1f} % now; {today.per_second:.0f} → {now.per_second:.0f} texts per second, from the same weights, "
        "untrained."
    )
    console.print(proved)
    proof = Block("proof", title, MODEL, [proved])

    console.print("\n[bold]3. The folder[/], loaded by sentence-transformers alone")
    difference = reload_difference(better, unseen[:20])
    console.print(
        f'SentenceTransformer("{out / "better"}").encode(texts): vectors within {difference:.0e} of those above'
    )

    console.print("\n[bold]4. Why[/]: every layer of the same model on news texts")
    run = profile(
        MODEL,
        "lee",
        out=out / "profile",
        metrics=PROFILE,
        final_norm="raw",
        limit=profiled,
        max_length=128,
    )
    print_run(run, console)
    curves = plot_profiles(
        [run], ["prompt_entropy", "curvature", "sink_ratio"], x="layer", columns=3
    )
    figure = save_figure(curves, out / "why.png")
    return [out / "better", figure, write_report([better, proof, run], out / "report.html")]


@dataclass(frozen=True)
class Timed:
    """Vectors, and how fast they came."""

    vectors: np.ndarray
    per_second: float


def typical(
    today: np.ndarray, now: np.ndarray, labels: np.ndarray, asked: int, count: int = 5
) -> list[int]:
    """Which of the first texts stand for them: the middle by how many more of their three nearest
    have their label now."""
    found = [
        (labels[nearest(vectors, 3, asked)] == labels[:asked, None]).sum(1)
        for vectors in (today, now)
    ]
    order = np.lexsort((np.arange(asked), found[1] - found[0]))
    start = (len(order) - count) // 2
    return [int(i) for i in order[start : start + count]]


def nearest(vectors: np.ndarray, count: int, asked: int) -> np.ndarray:
    """The nearest others (asked, count) of the first rows among all rows, by cosine."""
    rows = unit(vectors)
    cosines = rows[:asked] @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :count]


def neighbor_accuracy(vectors: np.ndarray, labels: np.ndarray, asked: int) -> float:
    """How many of the first rows in a hundred have a nearest neighbor of their label."""
    return 100 * float(np.mean(labels[nearest(vectors, 1, asked)[:, 0]] == labels[:asked]))


def timed(encode: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]) -> Timed:
    """Encode texts, by length so that batches hold little padding; the first few pay for what is
    done once."""
    encode(texts[:8])
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    start = time.perf_counter()
    vectors = encode([texts[i] for i in order])
    return Timed(vectors[np.argsort(order)], len(texts) / (time.perf_counter() - start))


def last_layer(name: str) -> Callable[[Sequence[str]], np.ndarray]:
    """What a user has today: the mean over the tokens at the last layer."""
    model = load(name)
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer == model.n_blocks]
    encoder = TextEncoder(model, get_template("plain"), sites, Readout().kinds, LENGTH)
    return lambda texts: encoder.run(encoder.read(list(texts)), lambda n: None)[0][
        Readout().kinds[0]
    ][0]


def few_shot_accuracy(
    vectors: np.ndarray, labels: np.ndarray, shots: int = SHOTS, draws: int = 20, seed: int = 0
) -> float:
    """Accuracy in percent of a ridge probe fitted on a few examples per class and tested on the
    others; a mean over draws.

    Vectors are scaled to length 1, as the exported model gives them; the penalty is a tenth of
    their mean squared length.
    """
    rng = np.random.default_rng(seed)
    rows = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    classes = np.unique(labels)
    right = []
    for _ in range(draws):
        picked = np.concatenate(
            [rng.permutation(np.flatnonzero(labels == label))[:shots] for label in classes]
        )
        rest = np.setdiff1d(np.arange(len(labels)), picked)
        train, test = rows[picked] - rows[picked].mean(0), rows[rest] - rows[picked].mean(0)
        goal = (labels[picked, None] == classes).astype(float)
        gram = train @ train.T
        gram[np.diag_indices_from(gram)] += 0.1 * np.trace(gram) / len(gram)
        told = test @ train.T @ np.linalg.solve(gram, goal - goal.mean(0))
        right.append(np.mean(classes[told.argmax(1)] == labels[rest]))
    return 100 * float(np.mean(right))


def reload_difference(better: Improved, texts: list[str]) -> float:
    """The largest difference of a number between the exported folder's vectors and those in
    memory."""
    from sentence_transformers import SentenceTransformer

    from layerscope.models.settings import quiet

    with quiet(bars=True):
        loaded = SentenceTransformer(str(better.folder), local_files_only=True)
    return float(np.abs(loaded.encode(texts, show_progress_bar=False) - better.encode(texts)).max())


def main() -> None:
    """Command line of the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--profiled", type=int, default=40)
    given = parser.parse_args()
    start = time.perf_counter()
    try:
        model, figure, report = demo(given.out, given.texts, given.profiled)
    except LayerscopeError as error:
        raise SystemExit(f"layerscope: {error}") from None
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    print(
        f"The better model: {model.resolve()}, with its card in README.md and every candidate in candidates.csv"
    )
    print(f"Figure: {figure.resolve()}")
    print(f"The report, in any browser: {report.resolve()}")


if __name__ == "__main__":
    main()
