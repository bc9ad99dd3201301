"""What a profile costs, against prompts, tokens, width, depth and workers; a cost model fitted to it, and what it predicts.

Small GPT-NeoX models with random weights on the CPU, one thread, all metrics of one view (and some runs with views). Every size
is varied by itself from a middle point, and every profile is measured beside the bare forward passes over the same texts. The
model of cost has one coefficient per kind of work and is fitted to both, by relative error; it is then used for sizes that
cannot be measured. `--workers` also runs through the Ray engine.

    python benchmarks/cost.py                            # a few minutes on a quiet machine
    python benchmarks/cost.py --workers 1 2 --json out.json
    python benchmarks/cost.py --short                    # fewer points, for a look
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import layerscope
from layerscope.capture import make_batch, plan_batches, token_budget
from layerscope.models import LoadedModel

METRICS = ["prompt_entropy", "curvature", "sink_ratio", "sink_first", "dataset_entropy", "effective_rank", "entropy_rank"]
WITH_VIEWS = [*METRICS, "infonce", "lidar"]


@dataclass(frozen=True)
class Point:
    """One run: how many prompts of how many tokens, through how wide and deep a model, with how many views."""

    prompts: int = 96
    tokens: int = 64
    width: int = 128
    blocks: int = 6
    views: int = 0


MIDDLE = Point()
VARIED = {
    "prompts": [48, 96, 192, 384],
    "tokens": [16, 32, 64, 128, 256],
    "width": [64, 128, 256, 512],
    "blocks": [3, 6, 12, 24],
    "views": [0, 2, 4, 8],
}
SHORT = {"prompts": [48, 96], "tokens": [32, 64, 128], "width": [64, 128, 256], "blocks": [3, 6], "views": [0, 2]}

# The kinds of work -------------------------------------------------------------------------------------------------------


def flops(p: Point) -> float:
    """Multiplications and additions of the forward passes: the blocks' matrices on every token, and attention."""
    per_token = 2 * p.blocks * 12 * p.width**2 + 4 * p.blocks * p.tokens * p.width
    return p.prompts * (1 + p.views) * p.tokens * per_token


def elements(p: Point) -> float:
    """Numbers that pass through a block: norms, activations, sums."""
    return p.prompts * (1 + p.views) * p.blocks * p.tokens * p.width


def eigen(p: Point) -> float:
    """Cubes of the sides of the matrices whose eigenvalues are taken: two per prompt and site, with and without the sink."""
    return 2 * p.prompts * (p.blocks + 1) * min(p.tokens, p.width) ** 3


def states(p: Point) -> float:
    """Numbers in the states that are read, centered, scaled, pooled."""
    return p.prompts * (1 + p.views) * (p.blocks + 1) * p.tokens * p.width


def cells(p: Point) -> float:
    """Prompts times sites: what is done once for each of them, with a vector to write and read."""
    return p.prompts * (1 + p.views) * (p.blocks + 1)


def spectra(p: Point) -> float:
    """Cubes of the sides of the spectra over prompts, at every site (and once per fold, which the coefficient holds)."""
    side = min(p.prompts, p.width)
    return (p.blocks + 1) * (side**3 + (p.width**3 if p.views else 0))


PASSES = {"flops": flops, "elements": elements}
KINDS = {**PASSES, "eigen": eigen, "states": states, "cells": cells, "spectra": spectra, "sites": lambda p: p.blocks + 1}


def amounts(p: Point, bare: bool = False) -> list[float]:
    """How much of each kind of work a profile holds, or the bare forward passes alone."""
    return [0.0 if bare and name not in PASSES else float(kind(p)) for name, kind in KINDS.items()]


def fit(points: list[Point], profiles: list[float], passes: list[float]) -> dict[str, float]:
    """Non-negative coefficients (seconds per unit) with the smallest sum of squared relative errors, of profiles and passes."""
    from scipy.optimize import nnls

    table = np.array([amounts(p) for p in points] + [amounts(p, bare=True) for p in points])
    table /= np.array(profiles + passes)[:, None]
    scale = table.max(axis=0)
    found, _ = nnls(table / scale, np.ones(len(table)))
    return dict(zip(KINDS, (found / scale).tolist(), strict=True))


def predict(coefficients: dict[str, float], p: Point, bare: bool = False) -> dict[str, float]:
    """Seconds of each kind of work."""
    return {name: coefficients[name] * amount for name, amount in zip(KINDS, amounts(p, bare), strict=True)}


# Measuring ---------------------------------------------------------------------------------------------------------------


def make_tokenizer(size: int):  # type: ignore[no-untyped-def]
    """One token per word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<unk>": 1, **{f"w{i}": i + 2 for i in range(size - 2)}}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", unk_token="<unk>")


def make_model(p: Point) -> LoadedModel:
    """A decoder of a point's shape."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=2000, hidden_size=p.width, num_hidden_layers=p.blocks, num_attention_heads=p.width // 32,
        intermediate_size=4 * p.width, max_position_embeddings=512,
    )  # fmt: skip
    return layerscope.wrap(transformers.GPTNeoXModel(config).eval(), make_tokenizer(2000), name=f"{p.blocks}x{p.width}")


def make_texts(p: Point) -> list[str]:
    """Different texts of exactly so many words."""
    rng = np.random.default_rng(0)
    return [" ".join(f"w{i}" for i in rng.integers(0, 1900, size=p.tokens)) for _ in range(p.prompts)]


def run(model: LoadedModel, p: Point, engine: Any = "local", clock: Callable[[], float] = time.process_time) -> float:
    """Seconds of one profile, of this process's CPU time: with one thread, what it takes where nothing else runs."""
    options: dict[str, Any] = {"views": p.views, "metrics": WITH_VIEWS} if p.views else {"metrics": METRICS}
    texts = make_texts(p)
    start = clock()
    layerscope.profile(model, texts, max_length=p.tokens, progress=False, engine=engine, **options)
    return clock() - start


def run_bare(model: LoadedModel, p: Point) -> float:
    """Seconds of the forward passes alone: as many texts of the same length, in batches."""
    ids = model.tokenize(make_texts(p), p.tokens).ids * (1 + p.views)
    groups = plan_batches([len(row) for row in ids], token_budget(model.device, model.width))
    batches = [make_batch([ids[i] for i in group], model.pad_id, model.device) for group in groups]
    start = time.process_time()
    for batch in batches:
        model.run(batch)
    return time.process_time() - start


def measure(varied: dict[str, list[int]], repeats: int) -> list[dict[str, Any]]:
    """The middle point with one size changed at a time; the median of some runs each."""
    found: list[dict[str, Any]] = []
    seen: dict[Point, tuple[float, float]] = {}
    run(make_model(MIDDLE), replace(MIDDLE, prompts=8))  # warm up
    print(f"{'varied':>8} {'':5} {'profile':>9} {'passes':>9} {'ratio':>6}")
    for name, values in varied.items():
        for value in values:
            point = replace(MIDDLE, **{name: value})
            if point not in seen:
                model = make_model(point)
                pairs = [(run(model, point), run_bare(model, point)) for _ in range(repeats)]
                seen[point] = statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)
            whole, bare = seen[point]
            found.append({"varied": name, **asdict(point), "seconds": whole, "passes": bare})
            print(f"{name:>8} {value:5d} {whole:8.3f}s {bare:8.3f}s {whole / bare:6.2f}", flush=True)
    return found


def measure_workers(counts: list[int]) -> list[dict[str, float]]:
    """The same work by one process and by Ray workers, with the start of the workers taken out by a first run."""
    from layerscope.engines import RayEngine

    point = Point(prompts=256, tokens=128, width=256, blocks=8)
    model, found = make_model(point), []
    alone = run(model, point, clock=time.perf_counter)
    print(f" workers  none  {alone:8.2f} s", flush=True)
    found.append({"workers": 0, "first_s": alone, "seconds": alone})
    for workers in counts:
        with RayEngine(workers=workers) as engine:
            first, second = (run(model, point, engine, time.perf_counter) for _ in range(2))
        found.append({"workers": workers, "first_s": first, "seconds": second})
        print(f" workers {workers:5d}  {second:8.2f} s (the first run, with the workers' start: {first:.2f} s)", flush=True)
    return found


def report(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Fit, errors and predictions."""
    points = {Point(**{k: row[k] for k in asdict(MIDDLE)}): (row["seconds"], row["passes"]) for row in rows}
    coefficients = fit(list(points), [a for a, _ in points.values()], [b for _, b in points.values()])
    errors = {p: sum(predict(coefficients, p).values()) / s - 1 for p, (s, _) in points.items()}
    worst = max(errors, key=lambda p: abs(errors[p]))
    print("\nseconds per unit: " + ", ".join(f"{name} {value:.2e}" for name, value in coefficients.items()))
    middle = statistics.median(map(abs, errors.values()))
    print(f"relative error of the fit: median {middle:.1%}, largest {abs(errors[worst]):.1%} ({worst})")
    large = Point(prompts=1_000_000, tokens=128, width=1024, blocks=24)
    parts = predict(coefficients, large)
    total = sum(parts.values())
    shares = ", ".join(f"{name} {value / total:.0%}" for name, value in sorted(parts.items(), key=lambda x: -x[1]))
    print(f"predicted for {large}, one thread of this CPU: {total / 3600:,.0f} hours ({shares})")
    passes = sum(predict(coefficients, large, bare=True).values())
    disk = cells(large) * large.width * 4 / 1e9
    print(f"  of which bare forward passes: {passes / 3600:,.0f} hours; vectors on disk: {disk:,.0f} GB")
    print(f"1,000 such models: {1000 * total / 3600 / 24 / 365:,.1f} years of one thread")
    return {
        "rows": rows,
        "coefficients": coefficients,
        "median_error": middle,
        "largest_error": abs(errors[worst]),
        "predicted_s": parts,
    }


def main() -> None:
    """Measure, fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[], help="also through Ray, with so many workers")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = report(measure(SHORT if args.short else VARIED, 1 if args.short else args.repeats))
    if args.workers:
        found["workers"] = measure_workers(args.workers)
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
