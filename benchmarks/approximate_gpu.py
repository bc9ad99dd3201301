"""The approximate entropy on a GPU, part by part: microseconds a matrix, memory moved, and the
largest error against float64.

Beside it stands the formulation it replaced, with float32 arrays and six TF32 products. Ten to
twenty seconds.

    python benchmarks/approximate_gpu.py
    python benchmarks/approximate_gpu.py --device cpu --count 4 --size 64      # whether it runs; its times mean nothing
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from layerscope.metrics.entropy import gram_entropy
from layerscope.spectra import full_precision
from layerscope_gpu import chebyshev as kernels
from layerscope_gpu import entropy
from layerscope_gpu.precision import half_products

Part = tuple[
    str, Callable[[], object], float, float
]  # what, the work, MiB and products a matrix of 512
PER_PROFILE = 50_000  # matrices of 1,000 prompts at 25 layers, with and without the sink token


def grams(count: int, n: int, device: str, decay: float = 0.0) -> Tensor:
    """Gram matrices of centered random rows of length 1 in 2 n dimensions, float32, of which the
    k-th is scaled by k^-decay."""
    parts = []
    for start in range(0, count, 200):
        torch.manual_seed(start)
        x = torch.randn(min(200, count - start), n, 2 * n, device=device)
        x *= torch.arange(1, 2 * n + 1, device=device) ** -decay
        x -= x.mean(1, keepdim=True)
        x /= torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        with full_precision():
            parts.append(x @ x.mT)
    return torch.cat(parts)


def seconds(work: Callable[[], object], device: str, repeats: int = 5) -> float:
    """The median time of some work, after one run that is not counted."""
    taken = []
    for _ in range(repeats + 1):
        if device == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end) / 1000)
        else:
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
    return statistics.median(taken[1:])


def new_parts(matrices: Tensor, n: int) -> list[Part]:
    """The steps of `approximate_entropy` in float16 on one chunk."""
    count = len(matrices)
    ones = torch.ones(count, dtype=torch.float64, device=matrices.device)
    diagonal = matrices.diagonal(dim1=-2, dim2=-1).double()
    arrays = matrices.new_zeros(entropy.COUNT, count, n, n, dtype=torch.float16)
    entropy.narrow(matrices, ones, arrays[0])
    entropy.product(arrays[1], arrays[0], arrays[0])
    entropy.fill(arrays, entropy._largest(arrays[1], diagonal))
    one, two, _, four, eight, _ = (
        arrays  # as they are, for products to have the numbers that they will have
    )
    out, other, third = torch.zeros_like(arrays[:3])
    return [
        (
            "diagonals, their sum and maximum",
            lambda: (entropy._diagonal(matrices).sum(-1), diagonal.amax(-1)),
            0,
            0,
        ),
        ("float32 to float16", lambda: entropy.narrow(matrices, ones, out), 1.5, 0),
        ("product K K", lambda: entropy.product(out, one, one), 1, 1),
        ("bound on the largest eigenvalue", lambda: entropy._largest(two, diagonal), 0.25, 0),
        ("T_1, T_2 from K, K²", lambda: entropy.rescale(out, other, third, ones, ones), 2.5, 0),
        ("product T_1 T_2", lambda: entropy.product(out, one, two), 1.5, 1),
        (
            "product for T_4, in place",
            lambda: entropy.product(out, two, two, 2.0, out, 0.5),
            1.5,
            1,
        ),
        (
            "product for T_8, with a copy",
            lambda: entropy.product(out, four, four, 2.0, four, 4.0),
            2.5,
            1,
        ),
        ("product T_8 T_8", lambda: entropy.product(out, eight, eight), 1, 1),
        ("traces of all pairs", lambda: entropy.pair_sums(arrays), 1.55, 0),
    ]


def old_parts(matrices: Tensor) -> list[Part]:
    """The kinds of steps that it replaced: float32, low polynomials 1 … 4, high ones 4, 8, 12,
    16."""
    low, high = (matrices.new_zeros(4, *matrices.shape) for _ in range(2))
    a, b, c = (matrices.clone() for _ in range(3))
    scale = torch.ones(len(matrices), 1, 1, device=matrices.device)

    def products() -> None:
        with full_precision(False):
            torch.bmm(a, a, out=b)
            for _ in range(5):
                c.baddbmm_(a, b, beta=0.5, alpha=1e-3)

    def sums() -> None:
        torch.linalg.vector_norm(b, dim=(-2, -1))
        for _ in range(2):
            torch.mul(a, scale, out=b)
        for k in range(7):
            torch.add(a, b, out=low[k % 4])

    def copies() -> None:
        for k in range(4):
            high[k].copy_(a)

    def traces() -> None:
        with full_precision():
            low.flatten(2).transpose(0, 1) @ high.flatten(2).permute(1, 2, 0)

    return [
        ("six products, TF32", products, 2 + 5 * 4, 6),
        ("sums and differences", sums, 1 + 2 * 2 + 7 * 3, 0),
        ("copies", copies, 8, 0),
        ("traces, a product", traces, 8, 0),
    ]


def table(title: str, parts: list[Part], count: int, n: int, device: str) -> float:
    """Print a line per part; the sum of their times."""
    print(
        f"\n{title}, {count:,} matrices of {n} x {n}\n{'':36}{'µs each':>9}{'s for 50,000':>14}{'TB/s':>7}{'TFLOP/s':>9}"
    )
    whole, moved_in_all, size = 0.0, 0.0, (n / 512) ** 2 * 2**20
    for what, work, mib, products in parts:
        each = seconds(work, device) / count
        whole, moved_in_all = whole + each, moved_in_all + mib
        speed = f"{mib * size / each / 1e12:7.2f}" if mib else " " * 7
        flops = f"{products * 2 * n**3 / each / 1e12:9.0f}" if products else ""
        print(f"{what:36}{each * 1e6:9.2f}{each * PER_PROFILE:14.3f}{speed}{flops}", flush=True)
    print(
        f"{'together':36}{whole * 1e6:9.2f}{whole * PER_PROFILE:14.3f}{moved_in_all * size / whole / 1e12:7.2f}"
    )
    return whole


def errors(n: int, device: str) -> None:
    """The largest difference from exact entropies, on 20 matrices of each kind."""
    print(
        f"\n{'20 matrices, |error| in nats':36}{'largest':>9}{'rounding':>10}{'bound':>9}{'float32':>10}"
    )
    for what, decay in (
        ("no direction dominates", 0.0),
        ("decaying as k^-1", 0.5),
        ("decaying as k^-2", 1.0),
    ):
        given = grams(20, n, device, decay)
        there = given.cpu().double()
        exact, ideal = gram_entropy(there.clone()), entropy.approximate_entropy(there)
        bound = entropy.entropy_bound(there)
        found = entropy.approximate_entropy(given, half=True).cpu()
        plain = entropy.approximate_entropy(given, half=False).cpu()
        figures = [
            (found - exact).abs().max(),
            (found - ideal).abs().max(),
            bound.max(),
            (plain - exact).abs().max(),
        ]
        print(
            f"{what:36}"
            + "".join(f"{float(x):{w}.1e}" for x, w in zip(figures, (9, 10, 9, 10), strict=True)),
            flush=True,
        )
        assert ((found - exact).abs() <= bound).all(), "outside of the bound"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--count", type=int, default=3200)
    parser.add_argument("--size", type=int, default=512, help="tokens; a multiple of 8")
    args = parser.parse_args()
    n, device, begin = args.size, args.device, time.perf_counter()
    if device == "cuda":
        ready = kernels.usable(torch.cuda.current_device())
        print(
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}; own kernels: {'used' if ready else 'NOT USABLE'}"
        )
    matrices = grams(args.count, n, device)
    chunk = matrices[: max(1, entropy._CHUNK_BYTES // (2 * n * n * entropy.COUNT))]
    table("before (float32, TF32 products)", old_parts(chunk[:400]), len(chunk[:400]), n, device)
    with half_products():
        table("now (float16)", new_parts(chunk, n), len(chunk), n, device)
    print(f"\n{'whole, matrices in a chunk':36}{'µs each':>9}{'s for 50,000':>14}")
    for size in (64, 256, 682, 2000, args.count):
        entropy._CHUNK_BYTES = size * 2 * n * n * entropy.COUNT
        each = seconds(lambda: entropy.approximate_entropy(matrices, half=True), device, 3) / len(
            matrices
        )
        print(f"{size:<36}{each * 1e6:9.2f}{each * PER_PROFILE:14.3f}", flush=True)
    errors(n, device)
    print(f"\n{time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
