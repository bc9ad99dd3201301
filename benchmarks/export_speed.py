"""How much faster and smaller is a model with fewer blocks?

    python benchmarks/export_speed.py                                # smollm2-135m cut at 5, 10, 15 and 20
    python benchmarks/export_speed.py --layers 5,15 --norm raw --threads 2
    python benchmarks/export_speed.py --folders better --model smollm2-135m   # folders of your own

Encodes texts of a fixed number of tokens with every model in turns, and prints texts per second,
the milliseconds of one text, parameters, size on disk and the peak memory of a process that loads
and encodes. `share` is the speed-up divided by blocks-before / blocks-after (1.00: what the blocks
alone would give).
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from layerscope.core.readout import Readout
from layerscope.exporting.draft import text_longer_than
from layerscope.exporting.job import prepare
from layerscope.models import load

BATCH = 16


def texts_of(length: int, count: int) -> list[str]:
    """Texts that have at least `length` tokens under any vocabulary, and not many more."""
    long = text_longer_than(length)[: 8 * length]
    return [f"{i} {long}" for i in range(count)]


def encode_seconds(model: Any, length: int, count: int) -> float:
    """The seconds that a model takes for `count` texts cut to `length` tokens."""
    model.max_seq_length = length
    start = time.perf_counter()
    model.encode(texts_of(length, count), batch_size=BATCH, show_progress_bar=False)
    return time.perf_counter() - start


def open_folder(folder: str) -> Any:
    """Load a folder as sentence-transformers does."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(folder, device="cpu", local_files_only=True)


def peak_megabytes(folder: Path, length: int) -> float:
    """The peak memory of a process that loads a folder and encodes with it."""
    command = [sys.executable, __file__, "--peak", str(folder), "--lengths", str(length)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", default="5,10,15,20")
    parser.add_argument("--folders", nargs="*", help="exported folders instead of layers")
    parser.add_argument("--norm", choices=("applied", "raw"), default="applied")
    parser.add_argument("--lengths", default="32,128")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lengths = [int(part) for part in args.lengths.split(",")]
    if args.peak:
        encode_seconds(open_folder(args.peak), lengths[0], BATCH)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = load(args.model)
        folders = {}
        for layer in [int(part) for part in args.layers.split(",")] if not args.folders else []:
            folders[f"layer {layer}"] = Path(scratch) / f"layer-{layer}"
            prepare(model, layer, Readout(final_norm=args.norm), folders[f"layer {layer}"])
        for folder in args.folders or []:
            folders[Path(folder).name] = Path(folder)
        folders[args.model] = Path(scratch) / "whole"
        prepare(model, model.n_blocks, Readout(), folders[args.model])
        del model
        measure(folders, lengths, args)


def measure(folders: dict[str, Path], lengths: list[int], args: argparse.Namespace) -> None:
    """Time all folders in turns, and print a row per folder; the last one is the whole model."""
    load_before = os.getloadavg()[0]
    models = {name: open_folder(str(folder)) for name, folder in folders.items()}
    many: dict[Any, list[float]] = {}
    one: dict[Any, list[float]] = {}
    for model in models.values():
        encode_seconds(model, min(lengths), 2)  # warm up
    for length in lengths:
        for turn in range(args.rounds):
            for name in list(models)[:: 1 if turn % 2 == 0 else -1]:
                seconds = encode_seconds(models[name], length, args.texts)
                many.setdefault((name, length), []).append(seconds / args.texts)
                one.setdefault((name, length), []).extend(
                    encode_seconds(models[name], length, 1) for _ in range(10)
                )
    print(f"{args.threads} threads, {args.texts} texts × {args.rounds} rounds in turns")
    print(f"load before: {load_before:.1f}")
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
            alone = 1000 * median(one[name, length])
            cells.append(f"{rate:13.2f} {alone:6.1f} {gained:8.2f} {share:5.2f}")
        millions = sum(p.numel() for p in model.parameters()) / 1e6
        disk = sum(file.stat().st_size for file in folders[name].rglob("*.safetensors")) / 2**20
        peak = peak_megabytes(folders[name], max(lengths))
        size = f"{millions:8.1f} {disk:5.0f} {peak:8.0f}"
        print(f"{name:>14} {blocks[name]:6} {size} " + "  ".join(cells))


if __name__ == "__main__":
    main()
