"""What a profile costs on one GPU, as a ratio to the bare forward passes over the same texts in the
same run.

Timed as the profile: `layerscope.profile` on a loaded model and texts in memory, end to end:
augmentation, tokenization, forward passes, reductions, every metric at every layer, intervals, both
tables. Not in it: making the model, a first run that compiles and warms up, and writing the run's
folder. The floor: the same token ids in the same batches, already on the GPU, through the same
model, nothing read. Both end with a synchronization; the median of a few runs each, in turns.

    python benchmarks/gpu.py                        # Pythia-410M's shape, 1,000 prompts, 128 and 512 tokens
    python benchmarks/gpu.py --shapes 1b 8b --prompts 200
    python benchmarks/gpu.py --texts texts.jsonl --lengths 512     # texts of real, mixed lengths

`share` is the part of the chip's arithmetic that is used: the products of matrices that real tokens
need (padding is waste), per second, over `--peak` TFLOP/s.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch
from common import make_model, make_parser, make_tokenizer

import layerscope
from layerscope.capture import make_batch, plan_batches, token_budget
from layerscope.data import Corpus, load_corpus
from layerscope.models import LoadedModel
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import ProfileTask
from layerscope_gpu.encoding import MOST_PENDING, EarlyPlanner, Prefetcher

ONE_VIEW = [
    *("prompt_entropy", "dataset_entropy", "effective_rank", "entropy_rank"),
    *("curvature", "sink_ratio", "sink_first"),
]
CASES = {
    "a": {"metrics": ["paper"], "views": 16},
    "b": {"metrics": ONE_VIEW},
}
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
SHAPES = {
    "410m": ("GPTNeoX", (1024, 24, 16, 4096)),
    "1b": ("GPTNeoX", (2048, 16, 8, 8192)),
    "8b": ("Llama", (4096, 32, 32, 14336)),
}


def words(count: int, rng: np.random.Generator) -> list[str]:
    """Made-up words of two to ten letters."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    return [
        "".join(rng.choice(letters, size=rng.integers(2, 11), p=weights / weights.sum()))
        for _ in range(count)
    ]


def make_texts(count: int, length: int) -> list[str]:
    """Return texts of made-up words, drawn by Zipf's law, of more than `length` tokens each."""
    rng = np.random.default_rng(0)
    lexicon = words(5000, rng)
    weights = 1 / np.arange(1, 5001)
    drawn = rng.choice(len(lexicon), size=(count, length), p=weights / weights.sum())
    return [" ".join([lexicon[i] for i in row.tolist()]) for row in drawn]


def model_of(shape: str, tokenizer: Any, dtype: torch.dtype) -> LoadedModel:
    """Return a model of a known shape with random weights, on the GPU."""
    kind, sizes = SHAPES[shape]
    settings = dict(zip(SIZES, sizes, strict=True))
    settings |= {"vocab_size": 50304, "max_position_embeddings": 4096}
    if kind == "Llama":
        settings["num_key_value_heads"] = 8
    return make_model(kind, tokenizer, dtype, "cuda", **settings)


def operations(model: LoadedModel, lengths: list[int]) -> float:
    """Floating-point operations of the matrix products that texts of so many tokens need, padding
    left out."""
    blocks = model.anatomy.blocks
    weights = sum(
        m.weight.numel()
        for block in blocks
        for m in block.modules()
        if isinstance(m, torch.nn.Linear)
    )
    attention = 4 * model.width * len(blocks)
    return float(sum(2 * weights * n + attention * n * n for n in lengths))


def bare_batches(model: LoadedModel, corpus: Corpus, length: int, **settings):  # type: ignore[no-untyped-def]
    """The batches that the profile forms of prompts and views, on the GPU."""
    config = make_config(max_length=length, **settings)
    job = ProfileTask(model, corpus, config)
    with EarlyPlanner(job.reader, job.shard_size, per_batch=job.items_per_batch) as planner:
        first = planner.first()
        plan = planner.plan()
    early = 0 if first is None else len(first.shards)
    starts = list(range(early, len(plan.shards), MOST_PENDING if config.n_views else 1))
    if early:
        starts.insert(0, 0)
    tokens, batches = token_budget(model.device, model.width), []
    with Prefetcher(job.reader, plan, plan.shards, config.view_settings) as reading:
        sets = [
            [row for shard in plan.shards[start:stop] for row in reading.rows(shard)]
            for start, stop in pairwise([*starts, len(plan.shards)])
        ]
        views = (reading.views(shard) for shard in plan.shards if config.n_views)
        for ids in chain(sets, views):
            groups = plan_batches([len(row) for row in ids], tokens)
            batches += [
                make_batch([ids[i] for i in group], model.pad_id, model.device) for group in groups
            ]
    return batches


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds until the GPU is done, and the result."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def run_bare(model: LoadedModel, batches) -> None:  # type: ignore[no-untyped-def]
    """The forward passes and nothing else, as a profile runs them."""
    model.find_shortcuts()
    for batch in batches:
        model.run(batch)


def measure(
    model: LoadedModel,
    corpus: Corpus,
    case: str,
    length: int,
    repeats: int,
    peak: float,
) -> dict[str, object]:
    """Return one line of the table."""
    settings = CASES[case]
    batches = bare_batches(model, corpus, length, **settings)

    def work() -> object:
        return layerscope.profile(model, corpus, max_length=length, progress=False, **settings)

    run_bare(model, batches[:2])
    torch.cuda.reset_peak_memory_stats()
    run_bare(model, batches)
    bare_gb = torch.cuda.max_memory_allocated() / 1e9
    first, _ = timed(work)
    torch.cuda.reset_peak_memory_stats()
    floors, wholes, parts = [], [], []
    for _ in range(repeats):
        floors.append(timed(lambda: run_bare(model, batches))[0])
        seconds, run = timed(work)
        wholes.append(seconds)
        parts.append(run.manifest["seconds"])
    bare, whole = statistics.median(floors), statistics.median(wholes)
    needed = operations(model, [n for batch in batches for n in batch.lengths])
    padded = sum(batch.input_ids.numel() for batch in batches)
    return {
        "case": case,
        "tokens": length,
        "prompts": len(corpus),
        "passes": sum(len(batch.lengths) for batch in batches),
        "bare_s": round(bare, 3),
        "profile_s": round(whole, 3),
        "ratio": round(whole / bare, 3),
        "bare_share": round(needed / bare / peak / 1e12, 3),
        "share": round(needed / whole / peak / 1e12, 3),
        "padding": round(1 - sum(sum(batch.lengths) for batch in batches) / padded, 3),
        "encode_s": round(statistics.median(p["encode"] for p in parts), 3),
        "metrics_s": round(statistics.median(p["metrics"] for p in parts), 3),
        "first_s": round(first, 3),
        "seconds": [round(seconds, 3) for seconds in wholes],
        "bare_gb": round(bare_gb, 2),
        "profile_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "eigenvalues": run.manifest["environment"]["eigenvalues"],
    }


def main() -> None:
    """Measure and print a table."""
    parser = make_parser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=["410m"], choices=SHAPES)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--texts", help="a corpus or a file to draw --prompts from")
    parser.add_argument("--peak", type=float, default=790, help="TFLOP/s of the chip")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16", flush=True)
    for shape in args.shapes:
        model = None
        for length in args.lengths:
            texts = make_texts(args.prompts, length)
            if args.texts:
                pool = load_corpus(args.texts).texts
                order = np.random.default_rng(0).permutation(len(pool))
                texts = [pool[i] for i in order[: args.prompts]]
            if model is None:
                model = model_of(shape, make_tokenizer(texts, 8000), torch.bfloat16)
            corpus = Corpus.of(texts)
            for case in args.cases:
                line = measure(model, corpus, case, length, args.repeats, args.peak)
                print(json.dumps({"shape": shape, **line}), flush=True)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
