"""Prefix entropies of one prompt, all at once, against the direct computation: error and cost.

Direct: for every length n the rows are prepared, the smaller Gram matrix formed and its eigenvalues
solved from scratch, float64. Times are CPU seconds of one thread. Without a model the states are
noise of the same shape, which costs the same.

    python benchmarks/prefix_entropy.py --model smollm2-135m --layers 5,12 --tokens 1024
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from layerscope.metrics.options import prepare_rows
from layerscope_paper.studies.prefix_entropies import entropies_of_prefixes, solve_each_prefix


def main() -> None:
    """Print a line per layer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--layers", default="12")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--width", type=int, default=576, help="of the noise, without a model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'states':28} {'direct s':>9} {'at once s':>10} {'ratio':>7} {'largest error':>14}")
    for name, states in _states(given):
        lengths = range(1, len(states) + 1)
        clock = time.process_time()
        direct = solve_each_prefix(prepare_rows(states, "centered-unit"), lengths, "raw")
        middle = time.process_time()
        found = entropies_of_prefixes(states, lengths, "prompt")
        end = time.process_time()
        error = float((found - direct).abs().max())
        one, two = middle - clock, end - middle
        print(
            f"{name:28} {one:9.2f} {two:10.2f} {f'1/{one / two:.1f}':>7} {error:14.1e}", flush=True
        )


def _states(given: argparse.Namespace) -> Iterator[tuple[str, Tensor]]:
    if given.model is None:
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(given.tokens, given.width, generator=generator, dtype=torch.float64)
        yield (
            f"noise {given.tokens} x {given.width}",
            noise * torch.arange(1, given.width + 1) ** -0.5,
        )
        return
    from layerscope.capture import Capture, expand_sites
    from layerscope.data import load_corpus
    from layerscope.models import load

    model = load(given.model)
    text = " ".join(load_corpus("lee").texts[:60])
    ids = model.tokenize([text], given.tokens).ids
    wanted = [int(layer) for layer in given.layers.split(",")]
    sites = [site for site in expand_sites(None, model.anatomy) if site.layer in wanted]
    held: dict[int, Tensor] = {}
    with Capture(
        model.anatomy, sites, "raw", lambda i, raw, state: held.__setitem__(i, state[0].double())
    ) as capture:
        capture.run(lambda: model.run(model.make_batch(ids)))
    for i, site in enumerate(sites):
        yield (
            f"{given.model} layer {site.layer}, {len(held[i])} x {held[i].shape[1]}",
            held[i].clone(),
        )


if __name__ == "__main__":
    main()
