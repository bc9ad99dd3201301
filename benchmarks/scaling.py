"""How the cost of a profile grows with prompts, tokens, width, blocks, views and workers, beside
the bare forward passes.

GPT-NeoX models with random weights and made-up texts. One size is varied at a time from a middle
point. A profile is timed end to end, the bare passes over the same token ids in the same batches
(as benchmarks/gpu.py does). On a GPU the clock is the wall's; on a CPU, with one thread, it is the
CPU time of this process.

    python benchmarks/scaling.py --device cuda --json h200.jsonl --seconds 380      # an H200: about six minutes
    python benchmarks/scaling.py --device cpu --json cpu.jsonl                      # one thread: some minutes
    python benchmarks/scaling.py --axes workers --json workers.jsonl                # Ray, 1 to 8 workers of one thread each
    python benchmarks/scaling.py --short                                            # a few tiny points, for a look
    python benchmarks/cost_model.py h200.jsonl                                      # the model of cost fitted to the results

Every line is printed and appended to --json as soon as it is measured. Points that would go beyond
--seconds are left out and named. A run of up to two seconds is measured three times after a first
one that compiles and warms up, one of up to four twice, a longer one once (after a small run of the
same shape); medians are given.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gpu
import numpy as np
import torch
from cost_model import Line, Point, vector_bytes

import layerscope
from layerscope.data import Corpus
from layerscope.models import LoadedModel
from layerscope.store import Shard, ShardStore

GPU = Point(prompts=1000, tokens=128, width=1024, blocks=12)
SMALL = Point(
    prompts=1000, tokens=16, width=256, blocks=4
)  # a second curve over prompts, up to a million
CPU = Point(prompts=96, tokens=64, width=128, blocks=6, device="cpu")
TOKENS = 2**18  # in all, where their number per prompt is varied

Axes = dict[str, list[Point]]
CUDA_AXES: Axes = {
    "tokens": [
        replace(GPU, tokens=n, prompts=TOKENS // n)
        for n in (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
    ],
    "prompts": [replace(GPU, prompts=n) for n in (100, 1000, 10_000, 100_000)],
    "views": [replace(GPU, views=n) for n in (0, 2, 4, 8, 16)],
    "disk": [replace(GPU, prompts=10_000, disk=True)],
    "blocks": [replace(GPU, blocks=n) for n in (3, 6, 12, 24, 48)],
    "width": [replace(GPU, width=n) for n in (256, 512, 1024, 2048, 4096, 8192)],
    "million": [replace(SMALL, prompts=n) for n in (100, 1000, 10_000, 100_000, 1_000_000)],
}
CPU_AXES: Axes = {
    "tokens": [replace(CPU, tokens=n) for n in (16, 32, 64, 128, 256, 512)],
    "prompts": [replace(CPU, prompts=n) for n in (48, 96, 192, 384, 768, 1536)],
    "views": [replace(CPU, views=n) for n in (0, 2, 4, 8)],
    "disk": [],  # a profile on a CPU always writes its vectors
    "blocks": [replace(CPU, blocks=n) for n in (3, 6, 12, 24)],
    "width": [replace(CPU, width=n) for n in (64, 128, 256, 512, 1024)],
    "million": [],
}
WORKERS = (1, 2, 4, 8)
WORKERS_POINT = Point(prompts=2048, tokens=64, width=256, blocks=4, device="cpu")
NAMES = (*CUDA_AXES, "workers")

LONG_S, MIDDLING_S = 4.0, 2.0  # a run of that many seconds is not repeated, or once
FEW = 64  # prompts of a run that only warms up
BARE_PROMPTS = 10_000  # more of the same length are run as these, several times over


def short(axes: Axes, device: str) -> Axes:
    """Two tiny points of every axis: enough to see that all works."""
    tiny = Point(prompts=24, tokens=16, width=64, blocks=2, device=device)
    steps = {
        "tokens": [8, 16],
        "prompts": [24, 48],
        "views": [0, 2],
        "blocks": [2, 3],
        "width": [64, 128],
    }
    made: Axes = {
        name: [replace(tiny, **{name: value}) for value in values] for name, values in steps.items()
    }
    return {
        **{name: made.get(name, []) for name in axes},
        "disk": [replace(tiny, disk=True)],
        "million": [replace(tiny, blocks=1)],
    }


# One point
# --------------------------------------------------------------------------------------------------------------------


class Models:
    """Models of the shapes that points ask for; the last one is kept."""

    def __init__(self) -> None:
        self.tokenizer = gpu.make_tokenizer(gpu.make_texts(500, 128))
        self.shape: tuple[int, int] | None = None
        self.model: LoadedModel | None = None

    def get(self, p: Point) -> LoadedModel:
        """A model of a point's shape."""
        if self.model is None or self.shape != (p.width, p.blocks):
            self.model = None
            gc.collect()
            if p.device == "cuda":
                torch.cuda.empty_cache()
            sizes = {
                "hidden_size": p.width,
                "num_hidden_layers": p.blocks,
                "num_attention_heads": max(1, p.width // (64 if p.width >= 256 else 32)),
                "intermediate_size": 4 * p.width,
                "max_position_embeddings": 8192,
            }
            dtype = torch.bfloat16 if p.device == "cuda" else torch.float32
            self.model = gpu.build_model(
                "GPTNeoX", sizes, self.tokenizer, dtype, f"{p.blocks}x{p.width}", p.device
            )
            self.shape = (p.width, p.blocks)
        return self.model


def settings_of(p: Point) -> dict[str, Any]:
    """What is measured: the metrics of one view, or the paper's seven with views."""
    return {"metrics": ["paper"], "views": p.views} if p.views else dict(gpu.CASES["b"])


def run_profile(model: LoadedModel, corpus: Corpus, p: Point) -> tuple[float, dict[str, float]]:
    """Seconds of one profile, in all and of its parts."""
    clock = time.perf_counter if p.device == "cuda" else time.process_time
    with ExitStack() as stack:
        folder = (
            stack.enter_context(tempfile.TemporaryDirectory(prefix="scaling-")) if p.disk else None
        )
        out = Path(folder) / "run" if folder else None
        seconds, run = gpu.timed(
            lambda: layerscope.profile(
                model, corpus, max_length=p.tokens, out=out, progress=False, **settings_of(p)
            ),
            clock,
        )
        return seconds, run.manifest["seconds"]


def measure(models: Models, p: Point) -> Line:
    """One line of results."""
    model, texts = models.get(p), gpu.make_texts(p.prompts, p.tokens)
    clock = time.perf_counter()
    corpus = Corpus.of(texts)
    corpus_s = time.perf_counter() - clock
    if p.device == "cuda":
        torch.cuda.reset_peak_memory_stats()

    # the same texts several times over are the same work: bare passes have no use for their words
    some = min(p.prompts, BARE_PROMPTS)
    batches = gpu.bare_batches(model, Corpus.of(texts[:some]), p.tokens, **settings_of(p)) * (
        p.prompts // some
    )
    bare_clock = time.perf_counter if p.device == "cuda" else time.process_time
    gpu.run_bare(model, batches[:2])

    def bare() -> float:
        return gpu.timed(lambda: gpu.run_bare(model, batches), bare_clock)[0]

    run_profile(model, Corpus.of(texts[:FEW]), replace(p, disk=False))
    pairs = []
    first = run_profile(model, corpus, p)
    if first[0] > LONG_S:
        pairs.append((*first, bare()))
    else:
        for _ in range(2 if first[0] > MIDDLING_S else 3):
            pairs.append((*run_profile(model, corpus, p), bare()))
    wholes = [whole for whole, _, _ in pairs]
    line = {
        **asdict(p),
        "profile_s": statistics.median(wholes),
        "bare_s": statistics.median(floor for *_, floor in pairs),
        "encode_s": statistics.median(parts["encode"] for _, parts, _ in pairs),
        "metrics_s": statistics.median(parts["metrics"] for _, parts, _ in pairs),
        "first_s": first[0],
        "fastest_s": min(wholes),
        "slowest_s": max(wholes),
        "runs": len(pairs),
        "corpus_s": corpus_s,
        "tokenize_s": tokenize_seconds(model, texts, p),
    }
    if p.device == "cuda":
        line["profile_gb"] = torch.cuda.max_memory_allocated() / 1e9
    if p.disk:
        line["write_gb_s"] = write_rate(p)
    return {
        name: round(value, 5) if isinstance(value, float) else value for name, value in line.items()
    }


def tokenize_seconds(model: LoadedModel, texts: list[str], p: Point) -> float:
    """Seconds to tokenize all prompts once, told by some of them."""
    some = texts[: max(1, min(p.prompts, 2**18 // p.tokens))]
    start = time.perf_counter()
    model.tokenize(some, p.tokens)
    return (time.perf_counter() - start) * p.prompts / len(some)


def write_rate(p: Point) -> float:
    """GB/s at which the vectors of shards are written to disk, as a profile with a folder does
    it."""
    count = min(p.prompts, 512)
    rows = np.random.default_rng(0).standard_normal(
        (p.blocks + 1, count, 1, p.width), dtype=np.float32
    )
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        store, shards = ShardStore(Path(folder)), 16
        start = time.perf_counter()
        for index in range(shards):
            store.write(index, Shard(np.arange(count), rows, {}))
        seconds = time.perf_counter() - start
    return shards * vector_bytes(replace(p, prompts=count)) / 1e9 / seconds


# All points
# -------------------------------------------------------------------------------------------------------------------


def along(axes: Axes, names: list[str], seconds: float) -> Iterator[Line]:
    """The lines of some axes. Where the time would run out, or a point fails, the rest of an axis
    is left out and named."""
    began, models, known = time.perf_counter(), Models(), dict[Point, Line]()
    for axis in names:
        expected = 0.0
        for number, point in enumerate(axes.get(axis, [])):
            rest = [asdict(p) for p in axes[axis][number:]]
            if point not in known:
                start = time.perf_counter()
                if start - began + expected > seconds:
                    yield {"axis": axis, "skipped": rest, "why": f"over {seconds:g} s"}
                    break
                try:
                    known[point] = measure(models, point)
                except Exception as error:  # the other axes are worth having
                    traceback.print_exc()
                    yield {
                        "axis": axis,
                        "skipped": rest,
                        "why": f"{type(error).__name__}: {error}"[:300],
                    }
                    break
                if len(rest) > 1:
                    expected = expect(
                        known[point], time.perf_counter() - start, axes[axis][number + 1]
                    )
            yield {"axis": axis, **known[point]}


def expect(line: Line, took: float, following: Point) -> float:
    """Seconds that the next point of an axis will take, from those that this one took: in the ratio
    of their work."""
    growth = max(1.0, size(following) / size(Point.of(line)))
    once = line["profile_s"] + line["bare_s"]
    around = max(0.0, took - line["first_s"] - line["runs"] * once)  # making texts and models
    return growth * (around + once * (1 if growth * line["profile_s"] > LONG_S else 4))


def size(p: Point) -> float:
    """How much work a point is, roughly."""
    return p.prompts * (1 + p.views) * p.tokens * p.blocks * p.width


def along_workers(point: Point, counts: tuple[int, ...]) -> Iterator[Line]:
    """The same profile on a CPU by this process and by Ray workers."""
    import workers

    model = Models().get(point)
    corpus = Corpus.of(gpu.make_texts(point.prompts, point.tokens))
    try:
        for line in workers.measure(model, corpus, counts, point.tokens):
            yield {
                "axis": "workers",
                **{k: v for k, v in asdict(point).items() if k != "device"},
                **line,
            }
    except Exception as error:  # without Ray, or where it does not start, what was measured before counts all the same
        traceback.print_exc()
        yield {
            "axis": "workers",
            "skipped": list(counts),
            "why": f"{type(error).__name__}: {error}"[:300],
        }


def facts(device: str) -> Line:
    """What was measured on what."""
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else cpu_name(),
        "on": device,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "layerscope": layerscope.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def cpu_name() -> str:
    """What Linux calls the processor, or its kind."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def main(given: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--axes",
        nargs="+",
        choices=NAMES,
        default=list(CUDA_AXES),
        help="all but workers, which need Ray",
    )
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="leave out points that would take longer in all"
    )
    parser.add_argument("--json", type=Path, help="a file to append every line to")
    parser.add_argument("--short", action="store_true", help="tiny points")
    args = parser.parse_args(given)
    if args.device == "cpu":
        torch.set_num_threads(1)
    axes = CUDA_AXES if args.device == "cuda" else CPU_AXES
    axes = short(axes, args.device) if args.short else axes

    def show(line: Line) -> None:
        text = json.dumps(line)
        print(text, flush=True)
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            with args.json.open("a", encoding="utf-8") as file:
                file.write(text + "\n")

    show(facts(args.device))
    for line in along(axes, [name for name in args.axes if name != "workers"], args.seconds):
        show(line)
    if "workers" in args.axes:
        point = (
            replace(WORKERS_POINT, prompts=128, tokens=16, width=64)
            if args.short
            else WORKERS_POINT
        )
        for line in along_workers(point, WORKERS[:2] if args.short else WORKERS):
            show(line)


if __name__ == "__main__":
    main()
