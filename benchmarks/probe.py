"""What probing all layers together costs against probing the last layer alone: the states and the
training of the probes.

    python benchmarks/probe.py
    python benchmarks/probe.py --width 384 --epochs 50

Both ways run the whole model once over the same texts (the last layer needs every block), keep the
states they read in memory, try three learning rates for 3 epochs each and train with the best of
them; nothing stops early, so that both do all the work. The runs alternate and the medians are
compared. The model has random weights, and the texts are made up: the cost does not depend on them.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np
import torch
from common import make_model, make_parser, make_tokenizer

import layerscope
from layerscope.models import LoadedModel
from layerscope.probing.job import HEADS

WANTED = 2.0
TOKENS, BLOCKS, CLASSES = 64, 12, 10
PARTS = ("states", "probes", "total")


def examples_of(count: int) -> tuple[list[str], list[str]]:
    """Return texts of made-up numbers and their classes; one word in eight tells the class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    words = rng.integers(0, 1000, (count, TOKENS))
    words[:, ::8] = labels[:, None]
    return [" ".join(map(str, row)) for row in words], [str(label) for label in labels]


def seconds_of(
    model: LoadedModel, data: tuple[list[str], list[str]], layers: list[int] | None, **options: Any
) -> dict[str, float]:
    """Return the seconds of one run: the states, the probes, and all of it."""
    start = time.perf_counter()
    run = layerscope.probe(
        model, data[0], labels=data[1], layers=layers, max_length=TOKENS, progress=False, **options
    )
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    total = time.perf_counter() - start
    states = run.manifest["seconds"]["states"]
    return {"states": states, "probes": total - states, "total": total}


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data = examples_of(args.texts)
    model = make_model(
        "GPTNeoX",
        make_tokenizer(data[0], 2000),
        torch.float32,
        device,
        vocab_size=2000,
        hidden_size=args.width,
        num_hidden_layers=BLOCKS,
        num_attention_heads=args.width // 64,
        intermediate_size=4 * args.width,
    )
    print(f"{BLOCKS} blocks, width {args.width}; {args.texts} texts, {args.epochs} epochs, {device}, "
          f"{torch.get_num_threads()} threads; seconds, median of {args.repeats}")  # fmt: skip
    print(f"{'':12}{'one layer':>27}{f'all {BLOCKS + 1} layers':>27}")
    print(f"{'':12}{''.join(f'{part:>9}' for part in (*PARTS, *PARTS))}    ratio   wanted")
    for head in HEADS:
        ways: dict[str, list[int] | None] = {"one": [-1], "all": None}
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        options = {"heads": head, "patience": args.epochs, "store_size": 16 * 2**30}
        seconds_of(model, data, [-1], heads=head, trial=1, epochs=1)  # warm up
        for _ in range(args.repeats):
            for way, layers in ways.items():
                runs[way].append(seconds_of(model, data, layers, epochs=args.epochs, **options))
        middle = {
            way: [statistics.median(run[part] for run in runs[way]) for part in PARTS]
            for way in ways
        }
        ratio = middle["all"][-1] / middle["one"][-1]
        cells = "".join(f"{value:9.2f}" for way in ways for value in middle[way])
        held = "yes" if ratio <= WANTED else "NO"
        print(f"{head:12}{cells}{ratio:9.2f}   ≤ {WANTED:g} {held}", flush=True)


if __name__ == "__main__":
    main()
