"""What a whole profile costs above the bare forward passes: time as a ratio within one run.

    python benchmarks/profile_overhead.py                                    # 100 prompts
    python benchmarks/profile_overhead.py --prompts 50 300 --repeats 5

The floor is the forward pass over the same prompts and views in the same batches, nothing else. The
profile includes augmentation, tokenization, all metrics at every layer, intervals and the run
folder. Profiles and bare passes take turns; each profile is compared with the passes before and
after it. The ratio of CPU seconds hardly depends on what else the machine does. What memory a
profile takes is the question of `memory.py`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from common import make_parser

from layerscope.capture import Batch, make_batch, plan_batches, token_budget
from layerscope.data import load_corpus, make_views
from layerscope.models import LoadedModel, load
from layerscope.profiling import profile
from layerscope.profiling.encode import choose_shard_size

WORDS = 130  # enough for 128 tokens


def passages(count: int) -> list[str]:
    """Return overlapping passages of the default corpus."""
    words = " ".join(load_corpus("lee").texts).split()
    step = max(1, min(WORDS, (len(words) - WORDS) // count))
    return [" ".join(words[i * step : i * step + WORDS]) for i in range(count)]


class Seconds(NamedTuple):
    """Seconds of the clock, and of all cores together."""

    wall: float
    cpu: float

    @classmethod
    def of(cls, work: Callable[[], object]) -> Seconds:
        """Return the seconds that some work takes."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        return cls(time.perf_counter() - wall, time.process_time() - cpu)


def bare_batches(model: LoadedModel, texts: list[str], views: int, length: int) -> list[Batch]:
    """Return prompts and views in the batches that the profile forms: of each shard its prompts,
    then its views."""
    tokens = token_budget(model.device, model.width)
    shard_size = choose_shard_size("cpu", model.n_blocks + 1, views, model.width)
    batches = []
    for start in range(0, len(texts), shard_size):
        shard = texts[start : start + shard_size]
        augmented = [view for made in make_views(shard, views, 0) for view in made]
        for part in (shard, augmented):
            ids = model.tokenize(part, length).ids
            for group in plan_batches([len(row) for row in ids], tokens):
                batches.append(make_batch([ids[i] for i in group], model.pad_id, model.device))
    return batches


def run_bare(model: LoadedModel, batches: list[Batch]) -> Seconds:
    """Return the seconds of the forward passes alone."""
    return Seconds.of(lambda: [model.run(batch) and None for batch in batches])


def run_profile(
    model: LoadedModel, texts: list[str], views: int, length: int
) -> tuple[Seconds, dict[str, float]]:
    """Return the seconds of the whole profile into a folder, and its own account of them."""
    options = {"views": views, "max_length": length, "metrics": ["all"], "progress": False}
    parts: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        spent = Seconds.of(
            lambda: parts.update(profile(model, texts, out=out, **options).manifest["seconds"])
        )
    return spent, parts


def measure(
    model: LoadedModel, prompts: int, views: int, length: int, repeats: int
) -> tuple[list[Seconds], list[Seconds], list[dict[str, float]]]:
    """Return the seconds of bare passes and of profiles in turns, and the profiles' parts."""
    texts = passages(prompts)
    batches = bare_batches(model, texts, views, length)
    run_bare(model, batches[:1])  # warm up
    bare = [run_bare(model, batches)]
    whole, parts = [], []
    for _ in range(repeats):
        spent, account = run_profile(model, texts, views, length)
        whole.append(spent)
        parts.append(account)
        bare.append(run_bare(model, batches))
    return bare, whole, parts


def main() -> None:
    """Measure and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, nargs="+", default=[100])
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=1)
    args = parser.parse_args()
    passes = f"{args.length} tokens, 1 + {args.views} passes per prompt"
    print(f"{args.model}, {passes}; medians of {args.repeats}")
    headings = ["prompts", "bare s", "profile s", "ratio", "lowest", "highest", "CPU ratio"]
    print(" ".join(f"{heading:>9}" for heading in [*headings, "encode s", "metrics s"]))
    model = load(args.model)
    for prompts in args.prompts:
        bare, whole, parts = measure(model, prompts, args.views, args.length, args.repeats)
        around = list(zip(whole, pairwise(bare), strict=True))
        wall = [2 * run.wall / (before.wall + after.wall) for run, (before, after) in around]
        cpu = [2 * run.cpu / (before.cpu + after.cpu) for run, (before, after) in around]
        seconds = [median(run.wall for run in runs) for runs in (bare, whole)]
        seconds += [median(part[name] for part in parts) for name in ("encode", "metrics")]
        cells = [str(prompts), *(f"{value:.1f}" for value in seconds[:2])]
        cells += [f"{value:.3f}" for value in (median(wall), min(wall), max(wall), median(cpu))]
        cells += [f"{value:.1f}" for value in seconds[2:]]
        print(" ".join(f"{cell:>9}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
