"""What a whole profile costs above the bare forward passes: time as a ratio within one run, and peak memory above the bare pass.

The floor is the forward pass over the same prompts and views in the same batches, nothing else. The profile includes
augmentation, tokenization, all metrics at every layer, intervals and the run folder. Memory is the peak of a process of its own.

    python benchmarks/profile_overhead.py                       # 100 prompts
    python benchmarks/profile_overhead.py --prompts 100 1000    # the memory bound must not grow
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rows import Row

from layerscope.capture import make_batch, plan_batches, token_budget
from layerscope.data import load_corpus, make_views
from layerscope.models import LoadedModel, load
from layerscope.profiling import profile

WORDS = 130  # enough for 128 tokens


def passages(count: int) -> list[str]:
    """Overlapping passages of the default corpus, as many as asked for."""
    words = " ".join(load_corpus("lee").texts).split()
    step = max(1, min(WORDS, (len(words) - WORDS) // count))
    return [" ".join(words[i * step : i * step + WORDS]) for i in range(count)]


def bare_batches(model: LoadedModel, texts: list[str], views: int, length: int) -> list[list[list[int]]]:
    """Token ids of prompts and views, in the batches that the profile forms."""
    every = texts + [view for made in (make_views(texts, views, 0) if views else []) for view in made]
    ids = model.tokenize(every, length).ids
    plan = plan_batches([len(row) for row in ids], token_budget(model.device, model.width))
    return [[ids[i] for i in group] for group in plan]


def run_bare(model: LoadedModel, batches: list[list[list[int]]]) -> float:
    """Seconds of the forward passes alone."""
    start = time.perf_counter()
    for group in batches:
        model.run(make_batch(group, model.pad_id, model.device))
    return time.perf_counter() - start


def run_profile(model: LoadedModel, texts: list[str], views: int, length: int) -> tuple[float, dict[str, float]]:
    """Seconds of the whole profile into a folder, and its own account of them."""
    metrics = ["all"] if views else list(NO_VIEWS)
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        run = profile(
            model, texts, out=Path(out) / "run", views=views or None, max_length=length, metrics=metrics, progress=False
        )
        return time.perf_counter() - start, run.manifest["seconds"]


NO_VIEWS = ("prompt_entropy", "curvature", "dataset_entropy", "effective_rank", "entropy_rank", "sink_ratio", "sink_first",
            "anisotropy", "intrinsic_dimension", "rankme", "alpha_req", "nesum")  # fmt: skip


def peak_mb() -> float:
    """Peak resident memory of this process. Linux hands `ru_maxrss` on from the parent; VmHWM is the process's own."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(int(line.split()[1]) / 1024 for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(kind: str, args: argparse.Namespace, prompts: int) -> float:
    """Peak memory of one kind of pass in a process of its own."""
    command = [sys.executable, __file__, "--child", kind, "--prompts", str(prompts), "--views", str(args.views)]
    command += ["--length", str(args.length), "--model", args.model]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(out.splitlines()[-1])["peak_mb"])


def short() -> list[Row]:
    """For `benchmarks/all.py`."""
    found, model = [], load("smollm2-135m", device="cpu")
    for views in (0, 4):
        texts = passages(6 if views else 16)
        batches = bare_batches(model, texts, views, 128)
        run_bare(model, batches[:1])  # warm up
        before = run_bare(model, batches)
        whole, _ = run_profile(model, texts, views, 128)
        floor = (before + run_bare(model, batches)) / 2
        what = f"profile of smollm2-135m, {f'all metrics, {views} views' if views else 'one view'}"
        found.append(Row(what, "bare batched passes", whole, floor))
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, nargs="+", default=[100])
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--child", choices=["bare", "profile"])
    args = parser.parse_args()
    if args.child:
        model, texts = load(args.model), passages(args.prompts[0])
        if args.child == "bare":
            run_bare(model, bare_batches(model, texts, args.views, args.length))
        else:
            run_profile(model, texts, args.views, args.length)
        print(json.dumps({"peak_mb": peak_mb()}))
        return
    print(f"{args.model}, {args.length} tokens, 1 + {args.views} passes per prompt")
    headings = ("prompts", "bare s", "profile s", "ratio", "encode s", "metrics s", "bare MB", "above MB")
    print(" ".join(f"{heading:>9}" for heading in headings))
    for prompts in args.prompts:
        model, texts = load(args.model), passages(prompts)
        batches = bare_batches(model, texts, args.views, args.length)
        run_bare(model, batches[:1])  # warm up
        before = run_bare(model, batches)
        whole, parts = run_profile(model, texts, args.views, args.length)
        after = run_bare(model, batches)
        bare = (before + after) / 2
        del model
        memory = [float("nan")] * 2 if args.no_memory else [child(kind, args, prompts) for kind in ("bare", "profile")]
        cells = [str(prompts), f"{bare:.1f}", f"{whole:.1f}", f"{whole / bare:.3f}", f"{parts['encode']:.1f}"]
        cells += [f"{parts['metrics']:.1f}", f"{memory[0]:.0f}", f"{memory[1] - memory[0]:.0f}"]
        print(" ".join(f"{cell:>9}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
