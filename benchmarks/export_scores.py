"""Do exported folders score what the evaluation measured? mteb's score of each folder, loaded by
plain sentence-transformers.

    python benchmarks/export_scores.py --data-dir DIR       # DIR/STSBenchmark/test.jsonl.gz in MTEB's columns
    python benchmarks/export_scores.py --data-dir DIR --limit 120

Evaluates the layers once, exports some of them, and lets mteb score each folder as it would score
any model. Prints both scores.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import mteb
import transformers
from sentence_transformers import SentenceTransformer

from layerscope import Evaluation, evaluate
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.exporting import export

ONE_WORD = "one-word/last/raw/keep/corpus"
CASES: dict[str, list[tuple[str, int | None]]] = {
    "smollm2-135m": [
        ("plain/mean/applied/keep/none", 5),
        ("plain/mean/applied/keep/none", 15),
        ("plain/mean/raw/keep/none", 1),
        ("plain/mean/raw/keep/none", 10),
        ("plain/mean/raw/keep/none", 30),
        (ONE_WORD, None),
    ],
    "minilm-l6": [("plain/mean/applied/keep/none", 3), ("plain/mean/applied/keep/none", 6)],
}
"""Readouts and layers by model; no layer: the best one."""


def measured(run: Evaluation, readout: str, layer: int) -> float:
    """The evaluation's score × 100."""
    parts = dict(
        zip(
            ("template", "pooling", "final_norm", "sink", "centering"),
            readout.split("/"),
            strict=True,
        )
    )
    rows = run.scores[run.scores["layer"] == layer]
    for column, value in parts.items():
        rows = rows[rows[column] == value]
    return 100 * float(rows["score"].iloc[0])


def scored(folder: Path, data: Path, limit: int | None) -> float:
    """mteb's score × 100 of a folder."""
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    task = resolve_tasks("STSBenchmark", data_dir=data, sample=limit)[0].load()
    found = mteb.evaluate(
        model, task, cache=None, co2_tracker=False, show_progress_bar=False
    ).task_results[0]
    return 100 * float(next(iter(found.scores.values()))[0]["main_score"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--model", choices=list(CASES), action="append")
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    print(f"{'model':14} {'readout':31} layer  blocks evaluation   folder   differ    last     s")
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.model or CASES:
            run = evaluate(
                name, ["STSBenchmark"], out=Path(scratch) / f"run-{name}", data_dir=args.data_dir, sample=args.limit,
                scoring_workers=0, readouts=list(dict.fromkeys(readout for readout, _ in CASES[name])), progress=False,
            )  # fmt: skip
            for i, (readout, layer) in enumerate(CASES[name]):
                start = time.perf_counter()
                folder = Path(scratch) / f"{name}-{i}"
                done = export(name, layer, readout=readout, choice=run.path, out=folder)
                here, there = (
                    measured(run, readout, done.layer),
                    scored(folder, args.data_dir, args.limit),
                )
                blocks = f"{done.facts['blocks']['kept']}{'+1' if done.facts['blocks']['filler'] else ''}"
                last = measured(run, readout, done.facts["base"]["n_blocks"])
                took = time.perf_counter() - start
                scores = f"{here:10.3f} {there:8.3f} {there - here:+8.4f} {last:7.2f}"
                print(
                    f"{name:14} {readout:31} {done.layer:5} {blocks:>7} {scores} {took:5.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
