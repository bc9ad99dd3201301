"""Whether eigenvalues would be had for less beside the next forward pass, on a stream of their own,
than after it.

    python benchmarks/streams_gpu.py                        # Pythia-410M's shape: 65,536 tokens in prompts of 128 and of 512

A batch's passes and the eigenvalues of its token matrices at all layers: each alone, one after the
other, and at once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from gpu import make_model, make_texts, make_tokenizer, timed

from layerscope.spectra import eigvalsh

TOKENS = 65536
LAYERS = 25


def median(work: Callable[[], object], repeats: int) -> float:
    """Milliseconds until the GPU is done."""
    work()
    return 1000 * statistics.median(timed(work)[0] for _ in range(repeats))


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    model = make_model("410m", make_tokenizer(make_texts(500, 128)), torch.bfloat16)
    beside = torch.cuda.Stream()
    print(
        f"{torch.cuda.get_device_name()}, milliseconds: passes, eigenvalues, one after the other, at once"
    )
    for length in args.lengths:
        texts = TOKENS // length
        batch = model.make_batch(model.tokenize(make_texts(texts, length), length).ids)
        x = torch.randn(2 * texts, length, 1024, device="cuda")
        grams = (x @ x.mT).repeat(
            LAYERS if length <= 256 else 1, 1, 1
        )  # all layers' would not fit in half of the memory
        rounds = 1 if length <= 256 else LAYERS
        del x

        def passes(batch=batch) -> None:  # type: ignore[no-untyped-def]
            model.run(batch)

        def spectra(grams=grams, rounds=rounds) -> None:  # type: ignore[no-untyped-def]
            for _ in range(rounds):
                eigvalsh(grams)

        def in_turn(passes=passes, spectra=spectra) -> None:  # type: ignore[no-untyped-def]
            spectra()
            passes()

        def at_once(passes=passes, spectra=spectra) -> None:  # type: ignore[no-untyped-def]
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                spectra()
            passes()
            torch.cuda.current_stream().wait_stream(beside)

        found = [median(work, args.repeats) for work in (passes, spectra, in_turn, at_once)]
        print(
            f"{length} tokens:",
            *(f"{ms:8.1f}" for ms in found),
            f"  at once / in turn {found[3] / found[2]:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
