"""What workers bring: the same profile by this process, and by one, two and more Ray workers on this machine.

    python benchmarks/workers.py --model smollm2-135m --texts 256 --workers 1 2 4

One thread each, so that the ratio is that of workers. Times are of the passes alone once workers are ready, and of all that a
user waits for (Ray's start, importing, loading, passes, metrics).
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from layerscope import load_corpus, profile
from layerscope.engines import RayEngine
from layerscope.engines.dispatch import Dispatch
from layerscope.engines.ray import require_ray

SETTINGS: dict[str, Any] = {"metrics": ["prompt_entropy", "curvature", "dataset_entropy"]}


def timed_passes() -> list[float]:
    """The moments when results came in: the first is when workers were warm, the last when all was done."""
    moments: list[float] = []
    receive = Dispatch._receive

    def noted(self: Dispatch, reference: Any) -> Any:
        found = receive(self, reference)
        if found is not None:
            moments.append(time.perf_counter())
        return found

    setattr(Dispatch, "_receive", noted)  # noqa: B010
    return moments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    corpus = load_corpus("lee", limit=given.texts)
    ray = require_ray()
    settings = {**SETTINGS, "max_length": given.length, "progress": False}
    clock = time.perf_counter()
    here = profile(given.model, corpus, **settings)
    whole = time.perf_counter() - clock
    rate = len(corpus) / here.manifest["seconds"]["encode"]
    print(f"{given.model}, {len(corpus)} texts of up to {given.length} tokens, one thread each, {os.cpu_count()} cores")
    print(f"{'':>10} {'texts/s':>8} {'ratio':>6} {'all':>8} {'largest difference':>19}")
    print(f"{'local':>10} {rate:8.1f} {1.0:6.2f} {whole:6.1f} s")
    moments = timed_passes()
    for workers in given.workers:
        moments.clear()
        clock = time.perf_counter()
        # a cluster of as many cores as workers: one alone would get all the threads there are
        ray.init(num_cpus=workers, log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        with RayEngine(workers=workers, gpus_per_worker=0) as engine:
            there = profile(given.model, corpus, engine=engine, **settings)
        ray.shutdown()
        whole = time.perf_counter() - clock
        # the first results mark the start: what came with them is not counted
        first = min(workers, len(moments) - 1)
        share = len(corpus) * (len(moments) - first) / len(moments)
        passes = share / (moments[-1] - moments[first - 1])
        off = (there.table["value"] - here.table["value"]).abs().max()
        print(f"{f'ray × {workers}':>10} {passes:8.1f} {passes / rate:6.2f} {whole:6.1f} s {off:19.1e}")


if __name__ == "__main__":
    main()
