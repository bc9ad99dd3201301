"""The metrics of a profile on a GPU: those of many sites together, in float32 where it gives what
float64 gives, while the host computes the means over prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from layerscope.capture.batches import is_out_of_memory, release_memory
from layerscope.metrics import Estimate, Metric, Options, SiteVectors
from layerscope.metrics.vectors import FOLDS
from layerscope.profiling.tables import SiteEstimator, SiteValues
from layerscope_gpu.metrics import dime, infonce, lidar, pooled

_SHARE_OF_MEMORY = 0.4  # of what is free, for the sites that are worked on together

Finish = Callable[[], Mapping[str, Sequence[Estimate]]]
"""Waits for the GPU, and gives the estimates of the sites by metric, or puts what the metrics need
into each site."""


def measure_sites(
    estimator: SiteEstimator, count: int, device: torch.device
) -> Iterator[SiteValues]:
    """Yield the values of each site, for as many sites together as memory allows.

    The means of per-prompt numbers are the host's own work. It does them while the GPU does what it
    has been given: not in a thread, since two that want Python at once hold each other up.
    """
    group = sites_together(estimator, device)
    start = 0
    while start < count:
        indices = range(start, min(start + group, count))
        try:
            values = measure_group(estimator, indices, device)
        except RuntimeError as error:
            if not is_out_of_memory(error) or group == 1:
                raise
            group = (len(indices) + 1) // 2
            release_memory()
            continue
        start += len(indices)
        yield from values


def measure_group(
    estimator: SiteEstimator, indices: range, device: torch.device
) -> list[SiteValues]:
    """Return the values of some sites."""
    sites = [estimator.read_site(index, device) for index in indices]
    finish = estimate_sites(estimator.metrics, sites, estimator.options)
    means = [estimator.measure_prompts(index) for index in indices]
    estimates = finish()
    return [
        mean | estimator.measure_vectors(site, known)
        for mean, site, known in zip(means, sites, estimates, strict=True)
    ]


def sites_together(estimator: SiteEstimator, device: torch.device) -> int:
    """Return how many sites fit into memory together."""
    shape = estimator.shards[0].pooled[0].shape
    prompts, views, width = len(estimator.prompts), shape[1], shape[2]
    side = min(prompts, width)
    # bytes: float32, and half as much for what a few sites need in float64
    folds = 6 * (FOLDS + 1) * side * side
    vectors = 6 * prompts * views * width
    free = torch.cuda.mem_get_info(device)[0]
    return max(1, int(_SHARE_OF_MEMORY * free / (folds + vectors)))


def estimate_sites(
    metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options
) -> Callable[[], list[dict[str, Estimate]]]:
    """Give the GPU the work of metrics at sites of the same prompts. The function that is returned
    waits for it, and returns the estimates of each site that are done.

    Other metrics find in their sites what is costly, or are left to be computed one by one.
    """
    by_name = {metric.info.name: metric for metric in metrics}
    # the last metrics first: what the host does after DiME is the least
    finishes: list[Finish] = []
    spectral = [metric for metric in metrics if pooled.is_spectral(metric)]
    if spectral:
        finishes.append(pooled.prepare(spectral, sites, options))
    if sites[0].views is not None and len(sites[0]) >= 2 and sites[0].views.shape[1] >= 2:
        ways = (
            (dime.prepare, ("dime",)),
            (lidar.prepare, ("lidar", "lidar_rank")),
            (infonce.prepare, ("infonce", "infonce_mi")),
        )
        finishes += [
            prepare(sites, options)
            for prepare, names in ways
            if any(name in by_name for name in names)
        ]

    def finish() -> list[dict[str, Estimate]]:
        estimates: list[dict[str, Estimate]] = [{} for _ in sites]
        for wait in finishes:
            for name, values in wait().items():
                for site, value in zip(estimates, values, strict=True):
                    site[name] = value
        return estimates

    return finish
