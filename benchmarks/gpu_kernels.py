"""Which kernels of our own a GPU uses, and how near each comes to what the chip can do. A look
before `benchmarks/gpu.py`.

    python benchmarks/gpu_kernels.py                  # Pythia-410M's shape: 512 texts of 128 tokens, D = 1024, 1,000 prompts
    python benchmarks/gpu_kernels.py --tokens 512 --texts 128
    python benchmarks/gpu_kernels.py --tokens 2048 --texts 32    # more tokens than dimensions: D×D matrices

Bytes are those that must be read and written once; products count two operations per
multiplication. It also says which operations inside the hooks wait for the GPU: there should be
none after the first batch.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from layerscope.metrics.folds import fold_members
from layerscope.metrics.options import Options
from layerscope.metrics.tokens.measures import centered_gram, prepare_long
from layerscope.metrics.tokens.norms import TokenFacts, token_norms
from layerscope.spectra import eigvalsh, usable_solvers
from layerscope.spectra.resolvents import sums_without
from layerscope_gpu import approximate_entropy, chebyshev, factors
from layerscope_gpu.precision import wide_product, wide_products
from layerscope_gpu.tokens import gram as gram_kernel
from layerscope_gpu.tokens import normed, sums
from layerscope_gpu.tokens import rows as row_kernel


def milliseconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Time of one run on the GPU, after one that warms up; the least of a few."""
    work()
    least = float("inf")
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        least = min(least, time.perf_counter() - start)
    return 1000 * least


def line(name: str, ms: float, gigabytes: float = 0.0, gigaflop: float = 0.0) -> None:
    """One row of the table."""
    speed = (
        f"{gigabytes / ms:8.2f} TB/s"
        if gigabytes
        else f"{gigaflop / ms:8.1f} TFLOP/s"
        if gigaflop
        else ""
    )
    print(f"{name:>44} {ms:9.3f} ms {speed}", flush=True)


def token_states(texts: int, tokens: int, width: int) -> None:
    """What happens to one layer's states of one batch."""
    states = torch.randn(texts, tokens, width, device="cuda", dtype=torch.bfloat16)
    norm = torch.nn.LayerNorm(width, device="cuda", dtype=torch.bfloat16)
    one = states.numel() / 1e9
    print(
        f"norm is read as: {normed._kind_of(norm, states)}; no norm as: {normed._kind_of(None, states)}"
    )
    line("token_sums", milliseconds(lambda: sums.token_sums(states, None)), 2 * one)
    line("LayerNorm of torch, for comparison", milliseconds(lambda: norm(states)), 4 * one)
    line("normed_means", milliseconds(lambda: normed.normed_means(states, None, norm)), 2 * one)
    line(
        "centered_states (read twice)",
        milliseconds(lambda: normed.centered_states(states, None, norm)),
        8 * one,
    )
    found = normed.centered_states(states, None, norm)
    if found is None:
        print("centered_states cannot be used here: states go step by step")
        return
    out = _long(states, found) if tokens > width else _short(states, found)
    n = len(out[0][0])
    line(
        f"eigenvalues of {2 * texts} matrices of {n}",
        milliseconds(lambda: eigvalsh(torch.cat(out), overwrite=True)),
    )
    if n >= 256:
        line(
            "approximate entropies of as many",
            milliseconds(lambda: approximate_entropy(torch.cat(out))),
        )


def _short(states: Tensor, found: normed.CenteredStates) -> tuple[Tensor, Tensor]:
    """Gram matrices of prompts with at most as many tokens as dimensions, and what is made of
    them."""
    texts, tokens, width = states.shape
    products = 2e-9 * texts * tokens * tokens * width
    line(
        "Gram matrices (TF32)",
        milliseconds(lambda: centered_gram(found.centered, states.dtype)),
        gigaflop=products,
    )
    gram = centered_gram(found.centered, states.dtype)
    out = torch.empty_like(gram), torch.empty_like(gram)
    given = (
        gram,
        TokenFacts(token_norms(states), None, found.largest, states.dtype),
        True,
        False,
        out,
    )
    line(
        "token_gram",
        milliseconds(lambda: gram_kernel.measure_gram(*given)),
        12 * gram.numel() / 1e9,
    )
    return out


def _long(states: Tensor, found: normed.CenteredStates) -> tuple[Tensor, Tensor]:
    """The D×D matrices of prompts with more tokens than dimensions."""
    texts, tokens, width = states.shape
    given = found.centered, TokenFacts(found.norms, None, found.largest, states.dtype)
    one = states.numel() / 1e9
    line(
        "token_rows, curvature alone",
        milliseconds(lambda: row_kernel.measure_rows(*given, True, False, None)),
        4 * one,
    )
    products = 2e-9 * texts * tokens * width * width
    out = torch.empty(texts, width, width, device="cuda")
    for dtype in (torch.float32, torch.float16) if wide_products(0) else (torch.float32,):
        name, size = ("TF32", 12 * one) if dtype == torch.float32 else ("float16", 8 * one)
        make = partial(row_kernel.measure_rows, *given, True, False, dtype)
        line(f"token_rows for {name}", milliseconds(make), size)
        rows = make().rows["keep"]
        tf32, float16 = (
            partial(centered_gram, rows.mT, states.dtype, out),
            partial(wide_product, rows, out),
        )
        work = milliseconds(tf32 if dtype == torch.float32 else float16)
        line(f"D×D products ({name}), one of two", work, gigaflop=products)
    line("all of it", milliseconds(lambda: prepare_long(*given, Options())))
    made = prepare_long(*given, Options()).matrices
    return made["keep"], made["drop"]


def pooled(prompts: int, width: int, sites: int) -> None:
    """What happens to the pooled vectors of all layers."""
    z = torch.randn(sites, prompts, width, device="cuda", dtype=torch.float64)
    z = z / torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    grams, members = z @ z.mT, fold_members(prompts, z.device)
    line(
        f"float64 products, {sites} of {prompts}",
        milliseconds(lambda: z @ z.mT),
        gigaflop=2e-9 * sites * prompts**2 * width,
    )
    eye = torch.eye(prompts, dtype=torch.float64, device="cuda")
    many = (grams + eye).repeat(4, 1, 1)
    work = 4 / 3 * 1e-9 * len(many) * prompts**3
    line(
        f"inverse factors of {len(many)}",
        milliseconds(lambda: factors.inverse_factor(many.clone()), 3),
        gigaflop=work,
    )
    line(
        "dataset entropy and ranks with folds",
        milliseconds(lambda: sums_without(grams, members), 3),
    )


def waits(texts: int, tokens: int, width: int) -> None:
    """Warn of what waits for the GPU inside a batch's hooks."""
    from gpu import make_model, make_texts, make_tokenizer

    from layerscope.capture import Reducer, expand_sites

    some = make_texts(texts, tokens)
    model = make_model("410m", make_tokenizer(some), torch.bfloat16)
    batch = model.make_batch(model.tokenize(some, tokens).ids)
    with Reducer(model.anatomy, expand_sites(None, model.anatomy), "applied", Options()) as reducer:
        reducer.reduce(batch, model.run, token_level=True)
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            reducer.reduce(batch, model.run, token_level=True)
        torch.cuda.set_sync_debug_mode("default")
    places = sorted({f"{warning.filename}:{warning.lineno}" for warning in seen})
    print(f"waits for the GPU in a pass with hooks: {len(seen)}", *places, sep="\n  ")


def main() -> None:
    """Print what is used and how fast it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--prompts", type=int, default=1000)
    parser.add_argument("--sites", type=int, default=25)
    parser.add_argument(
        "--waits", action="store_true", help="also look for waits in the hooks of a model"
    )
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}; eigenvalues: {usable_solvers('cuda')}")
    usable = {
        "token_sums": sums,
        "token_gram": gram_kernel,
        "token_rows": row_kernel,
        "resolvents": factors,
        "chebyshev": chebyshev,
    }
    print("usable:", {name: module.usable(0) for name, module in usable.items()})
    with torch.inference_mode():
        token_states(args.texts, args.tokens, args.width)
        pooled(args.prompts, args.width, args.sites)
    if args.waits:
        waits(min(args.texts, 64), args.tokens, args.width)


if __name__ == "__main__":
    main()
