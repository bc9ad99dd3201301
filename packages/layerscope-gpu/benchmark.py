"""Measure eigenvalues of many symmetric matrices on a GPU: layerscope_gpu, cuSOLVER and torch, in
microseconds per matrix.

    python benchmark.py                                          # sizes and batches, one table
    python benchmark.py --n 512 --matrices 16 256 2640
    python benchmark.py --stages --n 32 64 96 128                # the parts of each kernel
    python benchmark.py --stages --n 512 --matrices 2640 --variants 128,2,4,4,2,256,3,0

Errors are relative to the largest eigenvalue, against float64 on the CPU, over the first matrices.
`--stages` measures reduction to tridiagonal form (for a band, both stages separately) and
bisection. Without halvings the register kernel only reduces; a band's bisection is a separate
kernel. The last column is the entropy by determinants of the band. A variant lists the fields of
`band.BandVariant` in their order. This needs a CUDA GPU, torch and this package (from a clone:
PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from layerscope_gpu import eigenvalues, eigvalsh, solvers_used
from layerscope_gpu.cuda import launch, shared_memory
from layerscope_gpu.solvers import band, cusolver, determinants, pieces, small

_CHECKED = 50
_SLOW = 5000  # matrices for cuSOLVER, whose time per matrix is the same and long
_SLOWEST = 100  # for torch's own call, likewise


def gram_matrices(count: int, n: int) -> Tensor:
    """Gram matrices of centered unit rows, as prompts' are, with a decaying spectrum."""
    generator = torch.Generator("cuda").manual_seed(n)
    x = (
        torch.randn(count, n, n, generator=generator, device="cuda")
        / torch.arange(1, n + 1, device="cuda") ** 0.5
    )
    x -= x.mean(1, keepdim=True)
    x /= torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x @ x.mT


def microseconds(solve: Callable[[], object], count: int, repeats: int) -> float:
    """Median time per matrix."""
    solve()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        solve()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return 1000 * statistics.median(times) / count


def in_registers(matrices: Tensor, variant: small.RegisterVariant, steps: int) -> Tensor:
    """Run the register kernel with a number of halvings."""
    out = matrices.new_empty(matrices.shape[:2])
    launch(
        variant.source,
        "small_eigenvalues",
        len(matrices),
        variant.threads,
        0,
        [matrices, out, matrices.shape[-1], steps],
    )
    return out


def largest_error(values: Tensor, expected: Tensor) -> str:
    """Return the largest error as a share of the largest eigenvalue."""
    errors = (values.cpu() - expected).abs().amax(-1) / expected.abs().amax(-1)
    return f"{float(errors.max()):.1e}"


def registers(
    matrices: Tensor, expected: Tensor, variant: small.RegisterVariant, repeats: int
) -> list[str]:
    """Return a row: whole, reduction alone, bisection by difference, error."""
    try:
        error = largest_error(
            in_registers(matrices[: len(expected)], variant, variant.steps), expected
        )
    except RuntimeError as problem:
        return [str(problem)[:40], "", "", "", ""]
    count = len(matrices)
    steps = variant.steps
    whole = microseconds(lambda: in_registers(matrices, variant, steps), count, repeats)
    reduction = microseconds(lambda: in_registers(matrices, variant, 0), count, repeats)
    return [f"{whole:.3f}", f"{reduction:.3f}", "", f"{whole - reduction:.3f}", error]


def bisection_time(source: str, count: int, n: int, repeats: int) -> float:
    """Return the time of the bisection of random tridiagonal matrices."""
    diagonal, beside, out = (torch.rand(count, n, device="cuda") for _ in range(3))
    scale = torch.ones(count, device="cuda")
    return microseconds(lambda: pieces.bisect(source, diagonal, beside, scale, out), count, repeats)


def bands(n: int, descriptions: list[str]) -> Iterator[band.BandVariant]:
    """Yield the best variant, and the described ones that support matrices of n rows."""
    yield band.best_variant(n)
    for description in descriptions:
        variant = band.BandVariant(*map(int, description.split(",")))
        if n <= variant.largest and variant.shared(n) <= shared_memory(torch.cuda.current_device()):
            yield variant


def by_bands(
    matrices: Tensor, expected: Tensor, variant: band.BandVariant, repeats: int
) -> list[str]:
    """Return a row: whole, both stages, bisection, error, entropy."""
    count, n = matrices.shape[:2]
    try:
        error = largest_error(band.eigvalsh(matrices[: len(expected)], variant=variant), expected)
    except RuntimeError as problem:
        return [str(problem)[:40], "", "", "", "", ""]
    whole = microseconds(lambda: band.eigvalsh(matrices, variant=variant), count, repeats)
    copy = matrices.clone()
    size = matrices.new_ones(count)
    bands = band.to_band(copy, size, variant, overwrite=True)
    # the content of the overwritten matrices does not change the work
    reduction = microseconds(
        lambda: band.to_band(copy, size, variant, overwrite=True), count, repeats
    )
    chase = microseconds(lambda: band.from_band(bands, variant), count, repeats)
    entropies = microseconds(
        lambda: determinants.entropy(copy, variant, overwrite=True), count, repeats
    )
    times = (whole, reduction, chase, bisection_time(variant.source, count, n, repeats))
    return [*(f"{time:.3f}" for time in times), error, f"{entropies:.3f}"]


def compare(sizes: list[int], batches: list[int], repeats: int) -> None:
    """Print a table: the package's solver, cuSOLVER's batched one and torch's call, for every size
    and batch."""
    print(
        "| n | matrices | solver | kernel | cuSOLVER | torch | × cuSOLVER | × torch | largest "
        "error |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for n in sizes:
        for count in batches:
            matrices = gram_matrices(count, n)
            expected = torch.linalg.eigvalsh(matrices[: _CHECKED if n <= 256 else 3].cpu().double())
            eigenvalues._used.clear()
            error = largest_error(eigvalsh(matrices)[: len(expected)], expected)
            solver = solvers_used(torch.cuda.current_device()).split(" (")[0]
            many = matrices[:_SLOW]
            few = matrices[:_SLOWEST]
            by_kernel = microseconds(lambda m=matrices: eigvalsh(m), count, repeats)
            by_cusolver = microseconds(lambda m=many: cusolver.eigvalsh(m), len(many), repeats)
            by_torch = microseconds(lambda m=few: torch.linalg.eigvalsh(m), len(few), repeats)
            times = f"{by_kernel:.3f} | {by_cusolver:.3f} | {by_torch:.1f}"
            ratios = f"{by_cusolver / by_kernel:.1f} | {by_torch / by_kernel:.0f}"
            print(f"| {n} | {count} | {solver} | {times} | {ratios} | {error} |", flush=True)
            del matrices, many, few
            torch.cuda.empty_cache()


def stages(args: argparse.Namespace) -> None:
    """Print a table: the parts of every kernel that supports matrices of a size."""
    print(
        "| n | kernel | whole | reduction | band to tridiagonal | bisection | largest error | "
        "entropy |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for n in args.n:
        matrices = gram_matrices(args.matrices[0], n)
        expected = torch.linalg.eigvalsh(matrices[: _CHECKED if n <= 256 else 3].cpu().double())
        if n <= small.LARGEST:
            chosen = small.best_variant(n)
            block_counts: tuple[int, ...] = ()
            if args.blocks:
                block_counts = {32: (8, 12, 16, 20), 128: (2, 3, 4), 256: (1,)}[chosen.threads]
            others = [b for b in block_counts if b != chosen.min_blocks]
            for variant in (chosen, *(chosen._replace(min_blocks=b) for b in others)):
                label = f"registers, {variant.threads} threads, ≥ {variant.min_blocks} blocks"
                row = registers(matrices, expected, variant, args.repeats)
                print("|", " | ".join([str(n), label, *row, ""]), "|", flush=True)
        if band.SMALLEST <= n <= band.LARGEST:
            for band_variant in bands(n, args.variants):
                label = f"two stages {','.join(map(str, band_variant))}"
                row = by_bands(matrices, expected, band_variant, args.repeats)
                print("|", " | ".join([str(n), label, *row]), "|", flush=True)
        del matrices
        torch.cuda.empty_cache()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--n",
        type=int,
        nargs="+",
        default=[32, 64, 128, 192, 256, 512],
        help="rows of the matrices",
    )
    parser.add_argument(
        "--matrices", type=int, nargs="+", default=[64, 1600], help="numbers of matrices in a batch"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--stages",
        action="store_true",
        help="the parts of every kernel instead, for the first batch size",
    )
    parser.add_argument(
        "--blocks",
        action="store_true",
        help="with --stages: the register kernel for other numbers of blocks",
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        default=[],
        help="with --stages: also these variants of the two stages",
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU; torch finds none on this machine.")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32, microseconds per "
        "matrix\n"
    )
    if args.stages:
        stages(args)
    else:
        compare(args.n, args.matrices, args.repeats)


if __name__ == "__main__":
    main()
