"""What workers bring: the same profile by this process, and by one, two and more Ray workers on
this machine.

    python benchmarks/workers.py --model smollm2-135m --texts 256 --workers 1 2 4
    python benchmarks/scaling.py --axes workers             # the same with a small model made on the spot, up to 8 workers

One thread each, so that the ratio is that of workers. Times are of the passes alone once workers
are ready, and of all that a user waits for (Ray's start, importing, loading, passes, metrics).
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from layerscope import load_corpus, profile
from layerscope.data import Corpus
from layerscope.engines import RayEngine
from layerscope.engines.dispatch import Dispatch
from layerscope.engines.ray import require_ray

SETTINGS: dict[str, Any] = {"metrics": ["prompt_entropy", "curvature", "dataset_entropy"]}


@contextmanager
def timed_results() -> Iterator[list[float]]:
    """The moments when results came in: the first is when workers were warm, the last when all was
    done."""
    moments: list[float] = []
    receive = Dispatch._receive

    def noted(self: Dispatch, reference: Any) -> Any:
        outcome = receive(self, reference)
        if outcome is not None:
            moments.append(time.perf_counter())
        return outcome

    setattr(Dispatch, "_receive", noted)  # noqa: B010
    try:
        yield moments
    finally:
        setattr(Dispatch, "_receive", receive)  # noqa: B010


def measure(
    model: Any, corpus: Corpus, counts: Sequence[int], length: int
) -> Iterator[dict[str, Any]]:
    """One line for this process alone (no workers), then one for each count of workers.

    `seconds` are those of the passes over all texts at the rate of warm workers, `all_s` those that
    a user waits.
    """
    ray = require_ray()
    torch.set_num_threads(1)
    settings = {**SETTINGS, "max_length": length, "progress": False}
    clock = time.perf_counter()
    here = profile(model, corpus, **settings)
    whole, seconds = time.perf_counter() - clock, here.manifest["seconds"]["encode"]
    yield {
        "workers": 0,
        "texts_per_s": len(corpus) / seconds,
        "seconds": seconds,
        "all_s": whole,
        "difference": 0.0,
    }
    for workers in counts:
        clock = time.perf_counter()
        # a cluster of as many cores as workers: one alone would get all the threads there are
        ray.init(
            "local",
            num_cpus=workers,
            log_to_driver=False,
            include_dashboard=False,
            logging_level="ERROR",
        )
        try:
            with (
                timed_results() as moments,
                RayEngine(workers=workers, gpus_per_worker=0) as engine,
            ):
                there = profile(model, corpus, engine=engine, **settings)
        finally:
            ray.shutdown()
        whole = time.perf_counter() - clock
        # the first results mark the start: what came with them is not counted
        first = min(workers, len(moments) - 1)
        share = len(corpus) * (len(moments) - first) / len(moments)
        rate = share / (moments[-1] - moments[first - 1])
        off = float((there.table["value"] - here.table["value"]).abs().max())
        yield {
            "workers": workers,
            "texts_per_s": rate,
            "seconds": len(corpus) / rate,
            "all_s": whole,
            "difference": off,
        }


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m", help="a name or a folder")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    corpus = load_corpus("lee", limit=given.texts)
    print(
        f"{given.model}, {len(corpus)} texts of up to {given.length} tokens, one thread each, {os.cpu_count()} cores"
    )
    print(f"{'':>10} {'texts/s':>8} {'ratio':>6} {'all':>8} {'largest difference':>19}")
    alone = 0.0
    for line in measure(given.model, corpus, given.workers, given.length):
        rate, name = line["texts_per_s"], f"ray × {line['workers']}" if line["workers"] else "local"
        alone = alone or rate
        print(
            f"{name:>10} {rate:8.1f} {rate / alone:6.2f} {line['all_s']:6.1f} s {line['difference']:19.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
