"""How much faster is a model with fewer blocks? Throughput of cut models against the whole,
measured by turns in one run.

    python benchmarks/export_speed.py                                # smollm2-135m cut at 5, 10, 15 and 20
    python benchmarks/export_speed.py --layers 5,15 --norm raw --threads 2

Prints, for every cut, the speed-up and its share of blocks-before / blocks-after (1.00: what the
blocks alone would give).
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from layerscope.core.readout import Readout
from layerscope.exporting.bench import bench
from layerscope.exporting.job import prepare
from layerscope.models import load


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--layers", default="5,10,15,20")
    parser.add_argument("--norm", choices=("applied", "raw"), default="applied")
    parser.add_argument("--lengths", default="32,128")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    layers, lengths = (
        [int(part) for part in text.split(",")] for text in (args.layers, args.lengths)
    )
    with tempfile.TemporaryDirectory() as scratch:
        model = load(args.model)
        folders = [Path(scratch) / f"layer-{layer}" for layer in layers]
        for layer, folder in zip(layers, folders, strict=True):
            prepare(model, layer, Readout(final_norm=args.norm), folder)
        del model
        load_before = os.getloadavg()[0]
        found = bench(
            folders[0],
            [*folders[1:], args.model],
            lengths=lengths,
            texts=args.texts,
            rounds=args.rounds,
            threads=args.threads,
        )
    whole = found.models[-1]
    settings = f"{args.threads} threads, {args.texts} texts × {args.rounds} rounds by turns"
    print(f"{args.model}, {args.norm}, {settings}, on {found.machine}")
    print(f"load before: {load_before:.1f}")
    print(f"{'':>14} {'blocks':>6} {'M param':>8} {'MB':>5} {'peak MB':>8} ", end="")
    print(
        "  ".join(f"{f'texts/s @{length}':>13} {'speed-up':>8} {'share':>5}" for length in lengths)
    )
    for one in found.models:
        cells = []
        for length in lengths:
            rate, base = (m["lengths"][str(length)]["texts_per_s"] for m in (one, whole))
            gained, ideal = rate / base, whole["blocks"] / one["blocks"]
            cells.append(f"{rate:13.2f} {gained:8.2f} {gained / ideal:5.2f}")
        size = f"{one['parameters'] / 1e6:8.1f} {one['disk_bytes'] / 2**20:5.0f} {one['peak_bytes'] / 2**20:8.0f}"
        print(f"{one['name']:>14} {one['blocks']:6} {size} " + "  ".join(cells))


if __name__ == "__main__":
    main()
