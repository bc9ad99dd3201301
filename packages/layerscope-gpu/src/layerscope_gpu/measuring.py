"""Measure the metrics of a profile on a GPU, for many sites at once, while the host computes the
means over prompts.

Float32 is used where it gives the same result as float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from layerscope.capture.batches import is_out_of_memory, release_memory
from layerscope.metrics import Estimate, Metric, Options, SiteVectors
from layerscope.metrics.vectors import FOLDS
from layerscope.profiling.tables import SiteEstimator, SiteValues
from layerscope_gpu.metrics import Finish, dime, infonce, lidar, pooled

_SHARE_OF_MEMORY = 0.4  # of the free memory, for the sites that are measured together
_MOST_NUMBERS = 2**21  # influences of means at a few sites, whose intervals are made together


def measure_sites(
    estimator: SiteEstimator, count: int, device: torch.device
) -> Iterator[SiteValues]:
    """Yield the values of each site, measuring as many sites together as memory allows.

    The host computes the means of per-prompt numbers while the GPU works. It does so without a
    thread, since two Python threads delay each other.
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
    """Return the values of some sites; the host makes the intervals of one metric while the GPU
    works on the next."""
    sites = [estimator.read_site(index, device) for index in indices]
    work = start_work(estimator.metrics, sites, estimator.options)
    measured = measure_prompts(estimator, indices)
    remaining = {metric.info.name for metric in estimator.metrics}
    for names, finish in work:
        estimates = by_site(finish(), len(sites))
        remaining -= names
        _add(measured, estimator, sites, estimates, names)
    _add(measured, estimator, sites, [{}] * len(sites), remaining)
    return measured


def measure_prompts(estimator: SiteEstimator, indices: range) -> list[SiteValues]:
    """Return the means over prompts at some sites; intervals of a few sites are made together."""
    numbers = sum(
        len(metric.info.sinks) * len(metric.info.normalizations)
        for metric in estimator.metrics
        if metric.info.level == "tokens"
    )
    at_once = max(1, _MOST_NUMBERS // max(1, numbers * len(estimator.encoded.prompts)))
    measured: list[SiteValues] = []
    for start in range(0, len(indices), at_once):
        means = [estimator.estimate_means(index) for index in indices[start : start + at_once]]
        measured += estimator.add_intervals(means)
    return measured


def _add(
    measured: list[SiteValues],
    estimator: SiteEstimator,
    sites: Sequence[SiteVectors],
    estimates: Sequence[Mapping[str, Estimate]],
    names: set[str],
) -> None:
    """Add the values of the named metrics to those of the sites."""
    values_by_site = [
        estimator.estimate_site(site, site_estimates, names)
        for site, site_estimates in zip(sites, estimates, strict=True)
    ]
    for values, new_values in zip(measured, estimator.add_intervals(values_by_site), strict=True):
        values.update(new_values)


def sites_together(estimator: SiteEstimator, device: torch.device) -> int:
    """Return how many sites fit into memory together."""
    prompts = len(estimator.encoded.prompts)
    views = estimator.rows_per_prompt
    width = estimator.width
    side = min(prompts, width)
    # bytes of float32, and half as much for the float64 copies of a few sites
    folds = 6 * (FOLDS + 1) * side * side
    vectors = 6 * prompts * views * width
    free = torch.cuda.mem_get_info(device)[0]
    return max(1, int(_SHARE_OF_MEMORY * free / (folds + vectors)))


def start_work(
    metrics: Sequence[Metric], sites: Sequence[SiteVectors], options: Options
) -> list[tuple[set[str], Finish]]:
    """Queue the GPU's work for metrics at sites of the same prompts.

    Returns names of metrics with the function that waits for them. The other metrics are computed
    site by site.
    """
    requested = {metric.info.name for metric in metrics}
    # in this order the host has the least work left after the last metric
    work: list[tuple[set[str], Finish]] = []
    spectral = [metric for metric in metrics if pooled.is_spectral(metric)]
    if spectral:
        names = {metric.info.name for metric in spectral}
        work.append((names, pooled.prepare(spectral, sites, options)))
    if sites[0].views is not None and len(sites[0]) >= 2 and sites[0].views.shape[1] >= 2:
        families = (
            (dime.prepare, {"dime"}),
            (lidar.prepare, {"lidar", "lidar_rank"}),
            (infonce.prepare, {"infonce", "infonce_mi"}),
        )
        for prepare, names in families:
            if names & requested:
                work.append((names & requested, prepare(sites, options)))
    return work


def by_site(values: Mapping[str, Sequence[Estimate]], count: int) -> list[dict[str, Estimate]]:
    """Return the estimates of each site by metric."""
    return [
        {name: estimates[index] for name, estimates in values.items()} for index in range(count)
    ]
