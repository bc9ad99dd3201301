"""Peak memory of a profile as the number of prompts grows: it must stay flat, but for the texts
themselves.

    python benchmarks/memory.py                               # 1,000, 10,000 and 100,000 prompts
    python benchmarks/memory.py --prompts 1000 4000

A small model with random weights and made-up texts, token and pooled metrics, with a run folder.
Every run is a process of its own. A second process only makes the texts and loads the same libraries and
model, to see what these take.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from common import make_model, make_parser, make_tokenizer, peak_mb, run_again

TOKENS = 16
SIZES = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
METRICS = ["prompt_entropy", "curvature", "sink_ratio", "dataset_entropy", "effective_rank"]


def make_texts(count: int) -> list[str]:
    """Return texts of seven numbers; no two are the same."""
    rows = np.random.default_rng(0).integers(0, 500, (count, 6)).tolist()
    return [" ".join(map(str, (number, *row))) for number, row in enumerate(rows)]


def child(kind: str, prompts: int) -> float:
    """Return the peak memory of this process after the texts alone, or after their profile."""
    import torch

    import layerscope

    tokenizer = make_tokenizer(make_texts(300), 1000)
    model = make_model("GPTNeoX", tokenizer, torch.float32, "cpu", **SIZES)
    texts = make_texts(prompts)
    if kind == "profile":
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            layerscope.profile(
                model, texts, out=out, metrics=METRICS, max_length=TOKENS, progress=False
            )
    return peak_mb()


def run_child(kind: str, prompts: int) -> float:
    """Return the same of a process of its own."""
    return run_again(__file__, "--child", kind, "--prompts", str(prompts))


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--prompts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--child", choices=["texts", "profile"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(child(args.child, args.prompts[0]))
        return
    print(f"4 blocks, width 64, {TOKENS} tokens; metrics: {', '.join(METRICS)}")
    print(f"{'prompts':>9} {'texts alone MB':>15} {'profile MB':>11} {'above MB':>9}", flush=True)
    above = []
    for count in args.prompts:
        alone, whole = run_child("texts", count), run_child("profile", count)
        above.append(whole - alone)
        print(f"{count:9,} {alone:15.0f} {whole:11.0f} {above[-1]:9.0f}", flush=True)
    if len(above) > 1:
        first, last = args.prompts[0], args.prompts[-1]
        grown = above[-1] - above[0]
        each = grown * 2**20 / (last - first)
        print(f"from {first:,} to {last:,} prompts: {grown:+.0f} MB, {each:.0f} bytes per prompt")


if __name__ == "__main__":
    main()
