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
_NUMBERS_HELD = 2**21  # influences of means: those of a few sites wait for their intervals together

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
    """Return the values of some sites.

    The host makes the intervals of one metric while the GPU works on the next.
    """
    sites = [estimator.read_site(index, device) for index in indices]
    work = start_work(estimator.metrics, sites, estimator.options)
    measured = measure_prompts(estimator, indices)
    left = {metric.info.name for metric in estimator.metrics}
    for names, finish in work:
        estimates = by_site(finish(), len(sites))
        left -= names
        _add(measured, estimator, sites, estimates, names)
    _add(measured, estimator, sites, [{}] * len(sites), left)
    return measured


def measure_prompts(estimator: SiteEstimator, indices: range) -> list[SiteValues]:
    """Return the means over prompts at some sites; a few sites' intervals are drawn together."""
    numbers = sum(
        len(metric.info.sinks) * len(metric.info.normalizations)
        for metric in estimator.metrics
        if metric.info.level == "tokens"
    )
    at_once = max(1, _NUMBERS_HELD // max(1, numbers * len(estimator.encoded.prompts)))
    measured: list[SiteValues] = []
    for start in range(0, len(indices), at_once):
        made = [estimator.estimate_means(index) for index in indices[start : start + at_once]]
        measured += estimator.add_intervals(made)
    return measured


def _add(
    measured: list[SiteValues],
    estimator: SiteEstimator,
    sites: Sequence[SiteVectors],
    estimates: Sequence[Mapping[str, Estimate]],
    names: set[str],
) -> None:
    """Add the metrics of some names to the values of the sites."""
    made = [
        estimator.estimate_site(site, known, names)
        for site, known in zip(sites, estimates, strict=True)
    ]
    for values, more in zip(measured, estimator.add_intervals(made), strict=True):
        values.update(more)


def sites_together(estimator: SiteEstimator, device: torch.device) -> int:
    """Return how many sites fit into memory together."""
    prompts = len(estimator.encoded.prompts)
    views, width = estimator.rows_per_prompt, estimator.width
    side = min(prompts, width)
    # bytes: float32, and half as much for what a few sites need in float64
    folds = 6 * (FOLDS + 1) * side * side
    vectors = 6 * prompts * views * width
    free = torch.cuda.mem_get_info(device)[0]
    return max(1, int(_SHARE_OF_MEMORY * free / (folds + vectors)))


def estimate_sites(
    metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options
) -> list[dict[str, Estimate]]:
    """Return the estimates of the metrics that the GPU computes for many sites together."""
    estimates: list[dict[str, Estimate]] = [{} for _ in sites]
    for _, finish in start_work(metrics, sites, options):
        for known, more in zip(estimates, by_site(finish(), len(sites)), strict=True):
            known.update(more)
    return estimates


def start_work(
    metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options
) -> list[tuple[set[str], Finish]]:
    """Give the GPU the work of metrics at sites of the same prompts.

    Returns the names of metrics, each with the function that waits for them. Other metrics find in
    their sites what is costly, or are left to be computed one by one.
    """
    asked = {metric.info.name for metric in metrics}
    # the last metrics first: what the host does after DiME is the least
    work: list[tuple[set[str], Finish]] = []
    spectral = [metric for metric in metrics if pooled.is_spectral(metric)]
    if spectral:
        names = {metric.info.name for metric in spectral}
        work.append((names, pooled.prepare(spectral, sites, options)))
    if sites[0].views is not None and len(sites[0]) >= 2 and sites[0].views.shape[1] >= 2:
        ways = (
            (dime.prepare, {"dime"}),
            (lidar.prepare, {"lidar", "lidar_rank"}),
            (infonce.prepare, {"infonce", "infonce_mi"}),
        )
        for prepare, names in ways:
            if names & asked:
                work.append((names & asked, prepare(sites, options)))
    return work


def by_site(values: Mapping[str, Sequence[Estimate]], count: int) -> list[dict[str, Estimate]]:
    """Return the estimates of each site by metric."""
    return [{name: made[index] for name, made in values.items()} for index in range(count)]
