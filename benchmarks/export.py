"""What an exported folder gives: mteb's scores of it, and its speed and size.

    python benchmarks/export.py scores --data-dir DIR       # DIR/STSBenchmark/test.jsonl.gz in MTEB's columns
    python benchmarks/export.py speed                       # smollm2-135m cut at 5, 10, 15 and 20

`scores` evaluates the layers once, exports some of them, lets mteb score each folder as it would
score any model, loaded by plain sentence-transformers, and prints both scores.

`speed` encodes texts of a fixed number of tokens with every model in turns, and prints texts per
second, the milliseconds of one text, parameters, size on disk and the peak memory of a process that
loads and encodes. `share` is the speed-up divided by blocks-before / blocks-after (1.00: what the
blocks alone would give).
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import make_parser, peak_mb, run_again

from layerscope import Evaluation, evaluate
from layerscope.core.readout import Readout
from layerscope.evaluation.tasks import resolve_tasks
from layerscope.exporting import export
from layerscope.exporting.draft import ExportRequest, text_longer_than, verification_texts
from layerscope.exporting.pipeline import write_draft
from layerscope.models import LoadedModel, load

BATCH = 16
APPLIED, RAW = "plain/mean/applied/keep/none", "plain/mean/raw/keep/none"
ONE_WORD = "one-word/last/raw/keep/corpus"
CASES: dict[str, list[tuple[str, int | None]]] = {
    "smollm2-135m": [(APPLIED, 5), (APPLIED, 15), (RAW, 1), (RAW, 10), (RAW, 30), (ONE_WORD, None)],
    "minilm-l6": [(APPLIED, 3), (APPLIED, 6)],
}
"""Readouts and layers by model; no layer: the best one."""


def open_folder(folder: Path | str) -> Any:
    """Load a folder as sentence-transformers does."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def score_of(run: Evaluation, readout: str, layer: int) -> float:
    """Return the evaluation's score × 100."""
    names = ("template", "pooling", "final_norm", "sink", "centering")
    rows = run.scores[run.scores["layer"] == layer]
    for column, value in zip(names, readout.split("/"), strict=True):
        rows = rows[rows[column] == value]
    return 100 * float(rows["score"].iloc[0])


def mteb_score(folder: Path, data: Path, limit: int | None) -> float:
    """Return mteb's score × 100 of a folder."""
    import mteb

    task = resolve_tasks("STSBenchmark", data_dir=data, sample=limit)[0].load().task
    options: dict[str, Any] = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
    result = mteb.evaluate(open_folder(folder), task, **options).task_results[0]
    return 100 * float(next(iter(result.scores.values()))[0]["main_score"])


def scores(args: argparse.Namespace) -> None:
    """Print the evaluation's score and mteb's of every case."""
    logging.disable(logging.WARNING)
    print(f"{'model':14} {'readout':31} layer  blocks evaluation   folder   differ    last     s")
    with tempfile.TemporaryDirectory() as scratch:
        for name, cases in CASES.items():
            readouts = list(dict.fromkeys(readout for readout, _ in cases))
            run = evaluate(
                name,
                ["STSBenchmark"],
                out=Path(scratch) / f"run-{name}",
                data_dir=args.data_dir,
                sample=args.limit,
                scoring_workers=0,
                readouts=readouts,
                progress=False,
            )
            for i, (readout, layer) in enumerate(cases):
                start = time.perf_counter()
                folder = Path(scratch) / f"{name}-{i}"
                done = export(name, layer, readout=readout, choice=run.path, out=folder)
                here = score_of(run, readout, done.layer)
                there = mteb_score(folder, args.data_dir, args.limit)
                blocks = done.facts["blocks"]
                kept = f"{blocks['kept']}{'+1' if blocks['filler'] else ''}"
                last = score_of(run, readout, done.facts["base"]["n_blocks"])
                columns = f"{here:10.3f} {there:8.3f} {there - here:+8.4f} {last:7.2f}"
                took = time.perf_counter() - start
                print(
                    f"{name:14} {readout:31} {done.layer:5} {kept:>7} {columns} {took:5.0f}",
                    flush=True,
                )


def encode_seconds(model: Any, length: int, count: int) -> float:
    """Return the seconds that a model takes for `count` texts cut to `length` tokens."""
    model.max_seq_length = length
    text = text_longer_than(length)[: 8 * length]
    start = time.perf_counter()
    model.encode([f"{i} {text}" for i in range(count)], batch_size=BATCH, show_progress_bar=False)
    return time.perf_counter() - start


def speed(args: argparse.Namespace) -> None:
    """Export the whole model and its cuts, and measure all of them in turns."""
    torch.set_num_threads(args.threads)
    lengths = [int(part) for part in args.lengths.split(",")]
    if args.peak:
        encode_seconds(open_folder(args.peak), lengths[0], BATCH)
        print(peak_mb())
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = load(args.model)
        folders = {}
        for layer in map(int, args.layers.split(",")):
            folders[f"layer {layer}"] = Path(scratch) / f"layer-{layer}"
            write(model, layer, folders[f"layer {layer}"])
        folders[args.model] = Path(scratch) / "whole"
        write(model, model.n_blocks, folders[args.model])
        del model
        measure(folders, lengths, args)


def write(model: LoadedModel, layer: int, folder: Path) -> None:
    """Write a layer as a folder, without verifying it."""
    write_draft(ExportRequest(model, layer, Readout(), tuple(verification_texts())), folder)


def measure(folders: dict[str, Path], lengths: list[int], args: argparse.Namespace) -> None:
    """Time all folders in turns, and print a row per folder; the last one is the whole model."""
    print(f"{args.threads} threads, {args.texts} texts × {args.rounds} rounds in turns")
    models = {name: open_folder(folder) for name, folder in folders.items()}
    many: dict[tuple[str, int], list[float]] = {}
    single: dict[tuple[str, int], list[float]] = {}
    for model in models.values():
        encode_seconds(model, min(lengths), 2)  # warm up
    for length in lengths:
        for turn in range(args.rounds):
            for name in list(models)[:: 1 if turn % 2 == 0 else -1]:
                seconds = encode_seconds(models[name], length, args.texts)
                many.setdefault((name, length), []).append(seconds / args.texts)
                single.setdefault((name, length), []).extend(
                    encode_seconds(models[name], length, 1) for _ in range(10)
                )
    columns = "  ".join(
        f"{f'texts/s @{length}':>13} {'ms':>6} {'speed-up':>8} {'share':>5}" for length in lengths
    )
    print(f"{'':>14} {'blocks':>6} {'M param':>8} {'MB':>5} {'peak MB':>8} {columns}")
    whole = args.model
    blocks = {name: model[0].auto_model.config.num_hidden_layers for name, model in models.items()}
    for name, model in models.items():
        cells = []
        for length in lengths:
            rate = 1 / median(many[name, length])
            gained = rate * median(many[whole, length])
            share = gained * blocks[name] / blocks[whole]
            alone = 1000 * median(single[name, length])
            cells.append(f"{rate:13.2f} {alone:6.1f} {gained:8.2f} {share:5.2f}")
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        disk = sum(file.stat().st_size for file in folders[name].rglob("*.safetensors")) / 2**20
        words = ("speed", "--peak", str(folders[name]), "--lengths", str(max(lengths)))
        size = f"{millions:8.1f} {disk:5.0f} {run_again(__file__, *words):8.0f}"
        print(f"{name:>14} {blocks[name]:6} {size} " + "  ".join(cells))


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("scores")
    part.set_defaults(work=scores)
    part.add_argument("--data-dir", type=Path, required=True)
    part.add_argument("--limit", type=int, help="pairs of the task")
    part = parts.add_parser("speed")
    part.set_defaults(work=speed)
    part.add_argument("--model", default="smollm2-135m")
    part.add_argument("--layers", default="5,10,15,20")
    part.add_argument("--lengths", default="32,128")
    part.add_argument("--texts", type=int, default=32)
    part.add_argument("--rounds", type=int, default=3)
    part.add_argument("--threads", type=int, default=2)
    part.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.work(args)


if __name__ == "__main__":
    main()
