"""`make demo`: both uses of `improve` on real weights, proved with labels that it did not see.

A sentence encoder at half its blocks, and a language model at the layer and readout that suit the
texts; explained in one report.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd

import layerscope
from layerscope.blocks.result import print_faster
from layerscope.evaluation.tasks import TASKS
from layerscope.improving.words import print_improved
from layerscope.report.section import Section
from layerscope.terminal import Console

ENCODER = "minilm-l6"
MODEL = "smollm2-135m"  # the Instruct model, its weights quantized to 4 bits in their source
TASK = "TrecQuestions"
GIVEN = 1500  # questions without labels
SAMPLE = 200  # of them, which is enough to choose the layer and readout
UNSEEN = 400  # other questions: their labels check the results
READ = 250  # of them, which the language model reads: it takes ten times as long as the encoder
PROFILED = 60
LENGTH = 64
KINDS = ("an abbreviation", "a description", "a thing", "a person", "a place", "a number")
METRICS = ["prompt_entropy", "curvature", "sink_ratio"]


def demo(out: Path, sample: int = SAMPLE, profiled: int = PROFILED) -> list[Path]:
    """Improve an encoder and a language model; return the encoder's folder and the report."""
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    given, unseen = write_questions(out)
    labels = pd.read_csv(unseen)

    console.print(
        f"\n[bold]1. A faster encoder[/]: {ENCODER} at half its blocks, from {GIVEN:,} questions "
        f"without labels; checked with the labels of {len(labels)} others"
    )
    faster = layerscope.improve(
        ENCODER, given, column="text", labels=unseen, budget=0.5, max_length=LENGTH,
        out=out / "faster", overwrite=True,
    )  # fmt: skip
    print_faster(faster, console)

    console.print(
        f"\n[bold]2. A better reading[/]: which layer and readout of {MODEL} suit these questions"
    )
    model = layerscope.load(MODEL)
    better = layerscope.improve(model, given, column="text", sample=sample, max_length=LENGTH)
    print_improved(better, console)
    asked, kinds = labels["text"].tolist()[:READ], labels["label"].to_numpy()[:READ]
    baseline = layerscope.encode(model, asked, max_length=LENGTH)
    before, after = (
        neighbor_accuracy(vectors, kinds) for vectors in (baseline, better.encode(asked))
    )
    proof = (
        f"Of {len(asked)} other questions, {after:.1f} % have a nearest neighbor that asks for "
        f"the same of {len(KINDS)} kinds of answers; with the last layer's mean, which most "
        f"people use, {before:.1f} %."
    )
    console.print(f"Checked with the same labels: {proof}")
    console.print("[bold]better.save(FOLDER)[/] exports it, as the encoder above.")

    console.print(f"\n[bold]3. Why[/]: every layer of {MODEL} on {profiled} of the questions")
    run = layerscope.profile(
        model, given, column="text", metrics=METRICS, final_norm="raw", limit=profiled,
        max_length=LENGTH,
    )  # fmt: skip
    console.print(f"{run.name}: the curves are in the report.")
    check = Section("proof", f"{MODEL} by labels that it did not see", MODEL, [proof])
    report = layerscope.write_report([better, faster, check, run], out / "report.html")
    return [out / "faster", report]


def write_questions(out: Path) -> tuple[Path, Path]:
    """Write the questions without labels that are improved on, and the labeled ones that check.

    What the first ask for is in a column of their own, which colors the map.
    """
    rows = pd.DataFrame(list(TASKS.get(TASK).splits()["train"])).drop_duplicates("text")
    checked, given = rows[:UNSEEN], rows[UNSEEN : UNSEEN + GIVEN]
    files = out / "questions.csv", out / "labels.csv"
    kinds = [KINDS[int(label)] for label in given["label"]]
    pd.DataFrame({"text": given["text"], "asks for": kinds}).to_csv(files[0], index=False)
    checked[["text", "label"]].to_csv(files[1], index=False)
    return files


def neighbor_accuracy(vectors: np.ndarray, labels: np.ndarray) -> float:
    """Return how many rows in a hundred have a nearest neighbor, by cosine, of the same label."""
    rows = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -np.inf)
    return 100 * float(np.mean(labels[cosines.argmax(1)] == labels))


def main() -> None:
    """Command line of the demo."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"))
    parser.add_argument("--texts", type=int, default=SAMPLE)
    parser.add_argument("--profiled", type=int, default=PROFILED)
    options = parser.parse_args()
    start = time.perf_counter()
    try:
        faster, report = demo(options.out, options.texts, options.profiled)
    except layerscope.LayerscopeError as error:
        raise SystemExit(f"layerscope: {error}") from None
    print(f"\nDone in {time.perf_counter() - start:.0f} s.")
    print(f"The faster encoder: {faster.resolve()}")
    print(f"The report, in any browser: {report.resolve()}")


if __name__ == "__main__":
    main()
