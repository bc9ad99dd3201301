"""What a whole profile costs above the bare forward passes: time as a ratio within one run, and
peak memory above the bare pass.

The floor is the forward pass over the same prompts and views in the same batches, nothing else. The
profile includes augmentation, tokenization, all metrics at every layer, intervals and the run
folder. Profiles and bare passes take turns; each profile is compared with the passes before and
after it. The ratio of CPU seconds hardly depends on what else the machine does. Memory is the peak
of a process of its own.

    python benchmarks/profile_overhead.py                                    # 100 prompts
    python benchmarks/profile_overhead.py --prompts 50 300 --repeats 5 --no-memory
    python benchmarks/profile_overhead.py --prompts 100 1000                 # the memory bound must not grow
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rows import Row

from layerscope.capture import Batch, make_batch, plan_batches, token_budget
from layerscope.data import load_corpus, make_views
from layerscope.forward import choose_shard_size
from layerscope.models import LoadedModel, load
from layerscope.profiling import profile

WORDS = 130  # enough for 128 tokens


def passages(count: int) -> list[str]:
    """Overlapping passages of the default corpus, as many as asked for."""
    words = " ".join(load_corpus("lee").texts).split()
    step = max(1, min(WORDS, (len(words) - WORDS) // count))
    return [" ".join(words[i * step : i * step + WORDS]) for i in range(count)]


class Seconds(NamedTuple):
    """Of the clock, and of all cores together."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> Seconds:
        """What some work takes."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return cls(time.perf_counter() - wall, time.process_time() - cpu)


def bare_batches(model: LoadedModel, texts: list[str], views: int, length: int) -> list[Batch]:
    """Prompts and views in the batches that the profile forms: of each shard its prompts, then its
    views."""
    tokens, shard_size = (
        token_budget(model.device, model.width),
        choose_shard_size("cpu", model.n_blocks + 1, views, model.width),
    )
    batches = []
    for start in range(0, len(texts), shard_size):
        shard = texts[start : start + shard_size]
        for some in (
            shard,
            [view for made in (make_views(shard, views, 0) if views else []) for view in made],
        ):
            ids = model.tokenize(some, length).ids if some else []
            for group in plan_batches([len(row) for row in ids], tokens):
                batches.append(make_batch([ids[i] for i in group], model.pad_id, model.device))
    return batches


def run_bare(model: LoadedModel, batches: list[Batch]) -> Seconds:
    """Seconds of the forward passes alone."""
    return Seconds.of(lambda: [model.run(batch) and None for batch in batches])


def run_profile(
    model: LoadedModel, texts: list[str], views: int, length: int
) -> tuple[Seconds, dict[str, float]]:
    """Seconds of the whole profile into a folder, and its own account of them."""
    metrics, parts = ["all"] if views else list(NO_VIEWS), {}
    options = {"views": views or None, "max_length": length, "metrics": metrics, "progress": False}
    with tempfile.TemporaryDirectory() as out:
        spent = Seconds.of(
            lambda: parts.update(
                profile(model, texts, out=Path(out) / "run", **options).manifest["seconds"]
            )
        )
    return spent, parts


NO_VIEWS = ("prompt_entropy", "curvature", "dataset_entropy", "effective_rank", "entropy_rank", "sink_ratio", "sink_first",
            "anisotropy", "intrinsic_dimension", "rankme", "alpha_req", "nesum")  # fmt: skip


def peak_mb() -> float:
    """Peak resident memory of this process. Linux hands `ru_maxrss` on from the parent; VmHWM is
    the process's own."""
    status = Path("/proc/self/status")
    if status.exists():
        return next(
            int(line.split()[1]) / 1024
            for line in status.read_text().splitlines()
            if line.startswith("VmHWM")
        )
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def child(kind: str, args: argparse.Namespace, prompts: int) -> float:
    """Peak memory of one kind of pass in a process of its own."""
    command = [
        sys.executable,
        __file__,
        "--child",
        kind,
        "--prompts",
        str(prompts),
        "--views",
        str(args.views),
    ]
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
        floor = (before.wall + run_bare(model, batches).wall) / 2
        what = f"profile of smollm2-135m, {f'all metrics, {views} views' if views else 'one view'}"
        found.append(Row(what, "bare batched passes", whole.wall, floor))
    return found


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, nargs="+", default=[100])
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
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
    print(
        f"{args.model}, {args.length} tokens, 1 + {args.views} passes per prompt; medians of {args.repeats}"
    )
    headings = [
        "prompts",
        "bare s",
        "profile s",
        "ratio",
        "lowest",
        "highest",
        "CPU ratio",
        "encode s",
        "metrics s",
    ]
    headings += ["bare MB", "above MB"]
    print(" ".join(f"{heading:>9}" for heading in headings))
    for prompts in args.prompts:
        model, texts = load(args.model), passages(prompts)
        batches = bare_batches(model, texts, args.views, args.length)
        run_bare(model, batches[:1])  # warm up
        bare, whole, parts = [run_bare(model, batches)], [], []
        for _ in range(args.repeats):
            spent, account = run_profile(model, texts, args.views, args.length)
            whole.append(spent)
            parts.append(account)
            bare.append(run_bare(model, batches))
        ratios = [
            2 * one.wall / (before.wall + after.wall)
            for one, (before, after) in zip(whole, pairwise(bare), strict=True)
        ]
        of_cpu = [
            2 * one.cpu / (before.cpu + after.cpu)
            for one, (before, after) in zip(whole, pairwise(bare), strict=True)
        ]
        del model, batches
        memory = (
            [float("nan")] * 2
            if args.no_memory
            else [child(kind, args, prompts) for kind in ("bare", "profile")]
        )
        cells = [
            str(prompts),
            f"{median(b.wall for b in bare):.1f}",
            f"{median(w.wall for w in whole):.1f}",
        ]
        cells += [
            f"{value:.3f}" for value in (median(ratios), min(ratios), max(ratios), median(of_cpu))
        ]
        cells += [f"{median(part[name] for part in parts):.1f}" for name in ("encode", "metrics")]
        cells += [f"{memory[0]:.0f}", f"{memory[1] - memory[0]:.0f}"]
        print(" ".join(f"{cell:>9}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
