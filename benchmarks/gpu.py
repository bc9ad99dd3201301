"""What a profile costs on one GPU, as a ratio to the bare forward passes over the same texts in the
same run.

Timed as the profile: `layerscope.profile` on a loaded model and texts in memory, end to end:
augmentation, tokenization, forward passes, reductions, every metric at every layer, intervals, both
tables. Not in it: making the model, a first run that compiles and warms up, and writing the run's
folder. The floor: the same token ids in the same batches, already on the GPU, through the same
model, nothing read. Both end with a synchronization; the median of a few runs each, in turns.

    python benchmarks/gpu.py                        # Pythia-410M's shape, 1,000 prompts, 128 and 512 tokens
    python benchmarks/gpu.py --shapes 1b 8b --prompts 200 --kernels
    python benchmarks/gpu.py --texts lee texts.jsonl --tokenizer smollm2-135m --lengths 512     # texts of real, mixed lengths

`share` is the part of the chip's arithmetic that is used: the products of matrices that real tokens
need (padding is waste), per second, over `--peak` TFLOP/s.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import layerscope
from layerscope.capture import make_batch, plan_batches, token_budget
from layerscope.data import Corpus
from layerscope.forward import EarlyPlanner, Prefetcher
from layerscope.models import LoadedModel
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import MOST_PENDING
from layerscope.profiling.job import Job

ONE_VIEW = [
    "prompt_entropy",
    "dataset_entropy",
    "effective_rank",
    "entropy_rank",
    "curvature",
    "sink_ratio",
    "sink_first",
]
CASES = {
    "a": {"metrics": ["paper"], "views": 16},
    "b": {"metrics": ONE_VIEW},
    "b approximate": {"metrics": ONE_VIEW, "entropy": "approximate"},
}
WANTED = {
    ("a", 128): 1.4,
    ("a", 512): 1.5,
    ("b", 128): 1.7,
    ("b", 512): 6.0,
    ("b approximate", 512): 2.5,
}
SHAPES = {
    "410m": (
        "GPTNeoX",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "1b": (
        "GPTNeoX",
        {
            "hidden_size": 2048,
            "num_hidden_layers": 16,
            "num_attention_heads": 8,
            "intermediate_size": 8192,
        },
    ),
    "8b": (
        "Llama",
        {
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
        },
    ),
}


def words(count: int, rng: np.random.Generator) -> list[str]:
    """Made-up words of two to ten letters."""
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27)
    return [
        "".join(rng.choice(letters, size=rng.integers(2, 11), p=weights / weights.sum()))
        for _ in range(count)
    ]


def make_texts(count: int, length: int, seed: int = 0) -> list[str]:
    """Texts of made-up words, drawn as often as words are in language (Zipf), each of more than
    `length` tokens."""
    rng = np.random.default_rng(seed)
    lexicon = words(5000, rng)
    weights = 1 / np.arange(1, 5001)
    drawn = rng.choice(len(lexicon), size=(count, length), p=weights / weights.sum())
    return [" ".join([lexicon[i] for i in row.tolist()]) for row in drawn]


def make_tokenizer(texts: list[str]):  # type: ignore[no-untyped-def]
    """A byte-level BPE tokenizer learnt from some texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=8000, initial_alphabet=alphabet, special_tokens=["<pad>"], show_progress=False
    )
    tokenizer.train_from_iterator(texts[:500], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>")


def read_tokenizer(name: str):  # type: ignore[no-untyped-def]
    """The tokenizer of a folder, or of a model of the catalogue."""
    from transformers import AutoTokenizer

    from layerscope.models.catalogue import MODELS

    return AutoTokenizer.from_pretrained(name if Path(name).is_dir() else MODELS.fetch(name))


def build_model(
    kind: str, sizes: dict[str, int], tokenizer, dtype: torch.dtype, name: str, device: str = "cuda"
) -> LoadedModel:  # type: ignore[no-untyped-def]
    """A model of given sizes with random weights."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        **{"vocab_size": 50304, "max_position_embeddings": 4096, **sizes}
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            module = getattr(transformers, f"{kind}Model")(config)
    finally:
        torch.set_default_dtype(before)
    return layerscope.wrap(module.eval().requires_grad_(False), tokenizer, name=name)


def make_model(shape: str, tokenizer, dtype: torch.dtype) -> LoadedModel:  # type: ignore[no-untyped-def]
    """A model of a known shape with random weights."""
    return build_model(*SHAPES[shape], tokenizer, dtype, shape)


def read_texts(sources: list[str]) -> list[str]:
    """Texts of a corpus of the catalogue, or of a file."""
    return [
        text
        for source in sources
        for text in layerscope.load_corpus(source, text_filter="paper").texts
    ]


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
    job = Job(model, corpus, config)
    with EarlyPlanner(job.reader, job._shard_size(), per_batch=job.items_per_batch) as planner:
        first = planner.first()
        plan = planner.plan()
    early, at_once = (
        0 if first is None else len(first.shards),
        MOST_PENDING if config.n_views else 1,
    )
    starts = (
        [0, *range(early, len(plan.shards), at_once)]
        if early
        else range(0, len(plan.shards), at_once)
    )
    tokens, batches = token_budget(model.device, model.width), []
    with Prefetcher(job.reader, plan, plan.shards, config.view_settings) as reading:
        sets = [
            [row for shard in plan.shards[start:stop] for row in reading.rows(shard)]
            for start, stop in pairwise([*starts, len(plan.shards)])
        ]
        for ids in chain(
            sets, (reading.views(shard).rows for shard in plan.shards if config.n_views)
        ):
            groups = plan_batches([len(row) for row in ids], tokens)
            batches += [
                make_batch([ids[i] for i in group], model.pad_id, model.device) for group in groups
            ]
    return batches


def timed(
    work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """Seconds until the GPU is done, where there is one, and what came out."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = clock()
    result = work()
    wait()
    return clock() - start, result


def run_bare(model: LoadedModel, batches) -> None:  # type: ignore[no-untyped-def]
    """The forward passes and nothing else, as a profile runs them."""
    model.find_shortcuts()
    for batch in batches:
        model.run(batch)


def kernels(work: Callable[[], object], top: int = 14) -> dict[str, float]:
    """Milliseconds on the GPU by kernel, the largest first."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    total: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        total[event.key[:90]] += event.self_device_time_total / 1000
    return dict(sorted(total.items(), key=lambda item: -item[1])[:top])


def trace_compiling() -> None:
    """Print each kernel that is compiled, and each wait of more than 5 ms for one."""
    from layerscope_gpu import cuda

    start, make, compiled = time.perf_counter(), cuda._make, cuda.compiled

    def told(
        what: str, work: Callable[[str, str], bytes], least: float
    ) -> Callable[[str, str], bytes]:
        def run(source: str, architecture: str) -> bytes:
            before = time.perf_counter()
            code = work(source, architecture)
            took = time.perf_counter() - before
            if took > least:
                name = " ".join(
                    re.findall(
                        r"__global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\s*\(", source
                    )[:3]
                )
                defines = " ".join(re.findall(r"#define (\w+ \d+)", source)[:6])
                print(
                    f"  {before - start:7.2f} s + {took:5.2f} s {what:9}{name} [{defines}]",
                    flush=True,
                )
            return code

        return run

    cuda._make, cuda.compiled = told("compiled", make, 0.0), told("waited", compiled, 0.005)  # type: ignore[assignment]


def measure(
    model: LoadedModel,
    corpus: Corpus,
    case: str,
    length: int,
    repeats: int,
    show_kernels: bool,
    peak: float,
    memory: str | None = None,
) -> dict[str, object]:
    """One line of the table."""
    settings = CASES[case]
    batches = bare_batches(model, corpus, length, **settings)

    def work() -> object:
        return layerscope.profile(
            model, corpus, max_length=length, progress=False, memory=memory, **settings
        )

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
    line = {
        "case": case,
        "tokens": length,
        "prompts": len(corpus),
        "passes": sum(len(batch.lengths) for batch in batches),
        "bare_s": round(bare, 3),
        "profile_s": round(whole, 3),
        "ratio": round(whole / bare, 3),
        "wanted": WANTED.get((case, length)),
        "bare_share": round(needed / bare / peak / 1e12, 3),
        "share": round(needed / whole / peak / 1e12, 3),
        "padding": round(1 - sum(sum(batch.lengths) for batch in batches) / padded, 3),
        "encode_s": round(statistics.median(p["encode"] for p in parts), 3),
        "metrics_s": round(statistics.median(p["metrics"] for p in parts), 3),
        "first_s": round(first, 3),
        "spread": [round(min(wholes) / max(floors), 3), round(max(wholes) / min(floors), 3)],
        "bare_gb": round(bare_gb, 2),
        "profile_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2),
        "eigenvalues": run.manifest["environment"]["eigenvalues"],
    }
    if show_kernels:
        line["kernels_ms"] = {k: round(v, 1) for k, v in kernels(work).items()}
    return line


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=["410m"], choices=SHAPES)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument(
        "--texts",
        nargs="+",
        help="corpora or files instead of made-up texts; --prompts of them are drawn",
    )
    parser.add_argument(
        "--tokenizer",
        default="smollm2-135m",
        help="whose tokenizer reads --texts: a model's name or folder",
    )
    parser.add_argument(
        "--peak", type=float, default=790, help="TFLOP/s that the chip gives; an H200 in bf16: 790"
    )
    parser.add_argument("--memory", help="a bound for the profile, such as 5GB")
    parser.add_argument(
        "--mixed", action="store_true", help="made-up texts of mixed lengths, up to --lengths"
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="say which kernels are compiled, when, and who waits for them",
    )
    parser.add_argument(
        "--kernels", action="store_true", help="also say which GPU kernels the time goes to"
    )
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.dtype}", flush=True)
    if args.trace:
        trace_compiling()
    for shape in args.shapes:
        model = None
        for length in args.lengths:
            if args.texts:
                found = read_texts(args.texts)
                texts = [
                    found[i]
                    for i in np.random.default_rng(0).permutation(len(found))[: args.prompts]
                ]
            else:
                texts = make_texts(args.prompts, length)
                if args.mixed:  # half of them under a fifth of the longest
                    ends = (
                        np.random.default_rng(0)
                        .lognormal(np.log(length / 5), 0.9, len(texts))
                        .clip(4, length)
                        .astype(int)
                    )
                    texts = [
                        " ".join(text.split(" ")[:end])
                        for text, end in zip(texts, ends, strict=True)
                    ]
            if model is None:
                tokenizer = read_tokenizer(args.tokenizer) if args.texts else make_tokenizer(texts)
                model = make_model(shape, tokenizer, getattr(torch, args.dtype))
            corpus = Corpus.of(texts)
            for case in args.cases:
                if case == "b approximate" and length < 256:
                    continue
                line = measure(
                    model, corpus, case, length, args.repeats, args.kernels, args.peak, args.memory
                )
                print(json.dumps({"shape": shape, **line}), flush=True)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
