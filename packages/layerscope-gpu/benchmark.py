"""Eigenvalues of many symmetric matrices on a GPU: layerscope_gpu against cuSOLVER and torch,
microseconds per matrix.

    python benchmark.py                                          # sizes and batches, one table
    python benchmark.py --n 512 --matrices 16 256 2640
    python benchmark.py --stages --n 32 64 96 128                # where the time goes inside each kernel
    python benchmark.py --stages --n 512 --matrices 2640 --variants 128,2,4,4,2,256,3,0

Errors are against float64 on the CPU, of the largest eigenvalue, over the first matrices. With
`--stages`: reduction to tridiagonal form (in two stages by way of a band, each by itself) and
bisection apart; without halvings of intervals the register kernel only reduces; the bisection of a
band is a kernel of its own. The last column is the entropy by determinants of the band. A
variant is what `band.BandVariant` is made of, in its order. Needs a CUDA GPU, torch and this
package (from a clone: PYTHONPATH=src).
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


def in_registers(matrices: Tensor, how: small.RegisterVariant, steps: int) -> Tensor:
    """The register kernel with a number of halvings."""
    out = matrices.new_empty(matrices.shape[:2])
    launch(
        how.source,
        "small_eigenvalues",
        len(matrices),
        how.threads,
        0,
        [matrices, out, matrices.shape[-1], steps],
    )
    return out


def largest_error(found: Tensor, known: Tensor) -> str:
    """Of the largest eigenvalue."""
    return f"{float(((found.cpu() - known).abs().amax(-1) / known.abs().amax(-1)).max()):.1e}"


def registers(
    matrices: Tensor, known: Tensor, how: small.RegisterVariant, repeats: int
) -> list[str]:
    """A row: whole, reduction alone, bisection by difference, error."""
    try:
        error = largest_error(in_registers(matrices[: len(known)], how, how.steps), known)
    except RuntimeError as problem:
        return [str(problem)[:40], "", "", "", ""]
    whole, reduction = (
        microseconds(lambda s=s: in_registers(matrices, how, s), len(matrices), repeats)
        for s in (how.steps, 0)
    )
    return [f"{whole:.3f}", f"{reduction:.3f}", "", f"{whole - reduction:.3f}", error]


def bisection_time(source: str, count: int, n: int, repeats: int) -> float:
    """Of some tridiagonal matrices."""
    some = [torch.rand(count, n, device="cuda") for _ in range(2)] + [
        torch.ones(count, device="cuda")
    ]
    out = torch.empty(count, n, device="cuda")
    return microseconds(
        lambda: pieces.bisect(source, some[0], some[1], some[2], out), count, repeats
    )


def bands(n: int, given: list[str]) -> Iterator[band.BandVariant]:
    """The variant that is chosen, and those that were asked for, where they can take matrices of n
    rows."""
    yield band.best_variant(n)
    for one in given:
        how = band.BandVariant(*map(int, one.split(",")))
        if n <= how.largest and how.shared(n) <= shared_memory(torch.cuda.current_device()):
            yield how


def by_bands(matrices: Tensor, known: Tensor, how: band.BandVariant, repeats: int) -> list[str]:
    """A row: whole, both stages, bisection, error."""
    count, n = matrices.shape[:2]
    try:
        error = largest_error(band.eigvalsh(matrices[: len(known)], variant=how), known)
    except RuntimeError as problem:
        return [str(problem)[:40], "", "", "", "", ""]
    whole = microseconds(lambda: band.eigvalsh(matrices, variant=how), count, repeats)
    copy, size = matrices.clone(), matrices.new_ones(count)
    some = band.to_band(copy, size, how, overwrite=True)
    first = microseconds(
        lambda: band.to_band(copy, size, how, overwrite=True), count, repeats
    )  # what is left in it: the same work
    second = microseconds(lambda: band.from_band(some, how), count, repeats)
    entropies = microseconds(
        lambda: determinants.entropy(copy, how, overwrite=True), count, repeats
    )
    times = (whole, first, second, bisection_time(how.source, count, n, repeats))
    return [*(f"{time:.3f}" for time in times), error, f"{entropies:.3f}"]


def compare(sizes: list[int], batches: list[int], repeats: int) -> None:
    """A table: our choice of solver, cuSOLVER's batched one and torch's call, for every size and
    batch."""
    print(
        "| n | matrices | solver | ours | cuSOLVER | torch | × cuSOLVER | × torch | largest error |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for n in sizes:
        for count in batches:
            matrices = gram_matrices(count, n)
            known = torch.linalg.eigvalsh(matrices[: _CHECKED if n <= 256 else 3].cpu().double())
            eigenvalues._used.clear()
            error = largest_error(eigvalsh(matrices)[: len(known)], known)
            solver = solvers_used(torch.cuda.current_device()).split(" (")[0]
            some, few = matrices[:_SLOW], matrices[:_SLOWEST]
            ours = microseconds(lambda m=matrices: eigvalsh(m), count, repeats)
            theirs = microseconds(lambda m=some: cusolver.eigvalsh(m), len(some), repeats)
            plain = microseconds(lambda m=few: torch.linalg.eigvalsh(m), len(few), repeats)
            times = f"{ours:.3f} | {theirs:.3f} | {plain:.1f} | {theirs / ours:.1f} | {plain / ours:.0f}"
            print(f"| {n} | {count} | {solver} | {times} | {error} |", flush=True)
            del matrices, some, few
            torch.cuda.empty_cache()


def stages(args: argparse.Namespace) -> None:
    """A table: every kernel that can take matrices of a size, and its parts."""
    print(
        "| n | kernel | whole | reduction | band to tridiagonal | bisection | largest error | entropy |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for n in args.n:
        matrices = gram_matrices(args.matrices[0], n)
        known = torch.linalg.eigvalsh(matrices[: _CHECKED if n <= 256 else 3].cpu().double())
        if n <= small.LARGEST:
            chosen = small.best_variant(n)
            tried = (
                {32: (8, 12, 16, 20), 128: (2, 3, 4), 256: (1,)}[chosen.threads]
                if args.blocks
                else ()
            )
            others = [chosen._replace(min_blocks=b) for b in tried if b != chosen.min_blocks]
            for how in (chosen, *others):
                label = f"registers, {how.threads} threads, ≥ {how.min_blocks} blocks"
                print(
                    "|",
                    " | ".join([str(n), label, *registers(matrices, known, how, args.repeats), ""]),
                    "|",
                    flush=True,
                )
        if band.SMALLEST <= n <= band.LARGEST:
            for two in bands(n, args.variants):
                label = f"two stages {','.join(map(str, two))}"
                print(
                    "|",
                    " | ".join([str(n), label, *by_bands(matrices, known, two, args.repeats)]),
                    "|",
                    flush=True,
                )
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
        "--matrices", type=int, nargs="+", default=[64, 1600], help="how many there are in a batch"
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
        "--variants", nargs="+", default=[], help="with --stages: also these of the two stages"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU, and torch finds none here.")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float32, microseconds per matrix\n"
    )
    if args.stages:
        stages(args)
    else:
        compare(args.n, args.matrices, args.repeats)


if __name__ == "__main__":
    main()
