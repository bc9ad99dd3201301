"""From encoded items to tables: every metric at every site, with intervals, and the numbers of
single prompts; and a map of the items."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch

from layerscope.capture import Site
from layerscope.core.columns import PROFILE, Measured, names
from layerscope.core.sites import site_of
from layerscope.core.statistics import Interval
from layerscope.maps import LayerMap, Vectors, make_map, pick
from layerscope.metrics import (
    Estimate,
    Metric,
    MetricInfo,
    SiteVectors,
    estimate_prompts,
    estimate_vectors,
    get_metric,
    many_intervals,
    normalized,
)
from layerscope.metrics.entropy import Normalization
from layerscope.metrics.registry import is_plugin
from layerscope.metrics.tokens import FLAT, SINK_POSITION, values_of
from layerscope.profiling.encode import EncodedItems, Numbers, Plan, ProfileTask
from layerscope.spectra import map_concurrently

__all__ = ["SiteEstimator", "SiteValues"]

_SITES_AT_ONCE = 4  # each holds some tens of MB
_LARGEST_SITE = 2**28  # bytes of the vectors of a site: larger ones are read one by one


SiteEstimates = dict[tuple[str, str, str], Estimate]
"""Estimates by metric, sink and normalization; `raw` is always among the normalizations."""
SiteValues = dict[tuple[str, str, str], tuple[Estimate, Interval]]
"""The same with their intervals, and without influences, which may take much memory."""


@dataclass(frozen=True)
class ProfileTable:
    """The tidy table of a profile, one row per site, metric, normalization and sink setting.

    `undefined` counts prompts without a value by metric and site. `warnings` tells of metrics
    without a value, or that failed.
    """

    table: pd.DataFrame
    undefined: Mapping[str, Mapping[str, int]]
    warnings: Sequence[str]


def prompt_table(
    sites: Sequence[Site], plan: Plan, prompts: np.ndarray, numbers: Numbers
) -> pd.DataFrame:
    """Return one row per prompt and site, by number of prompt. Undefined values are empty."""
    columns = {
        "prompt": np.arange(len(plan.lengths)),
        "text_key": plan.keys,
        "tokens": plan.lengths,
        "truncated": plan.truncated,
    }
    if not numbers:
        return pd.DataFrame(columns)
    order = np.argsort(prompts, kind="stable")
    rows = prompts[order].repeat(len(sites))
    columns = {name: values[rows] for name, values in columns.items()}
    columns["site"] = np.tile(np.array([site.name for site in sites], dtype=object), len(prompts))
    columns["layer"] = np.tile(np.array([site.layer for site in sites]), len(prompts))
    for field, values in numbers.items():
        column = values[:, order].T.ravel()  # prompt by prompt, its sites in their order
        is_count = field in (FLAT, SINK_POSITION)
        columns[column_of(field)] = column.astype(np.int64) if is_count else column
    return pd.DataFrame(columns)


def column_of(field: str) -> str:
    """Return the column of the per-prompt table that shows a field.

    >>> column_of("my_metric.keep"), column_of("my_metric.drop"), column_of("sink_position")
    ('my_metric', 'my_metric_sink_dropped', 'sink_position')
    """
    name, _, sink = field.partition(".")
    return f"{name}_sink_dropped" if sink == "drop" else name


class SiteEstimator:
    """Estimates the metrics of a profile at each site, from encoded items."""

    def __init__(self, task: ProfileTask, encoded: EncodedItems) -> None:
        self.metrics = [get_metric(name) for name in task.config.metrics]
        self.options = task.config.options
        self.encoded = encoded
        self.rows_per_prompt = 1 + task.config.n_views
        self.width = task.model.width
        self.failed: dict[str, str] = {}
        prompts = encoded.prompts
        self._order = np.argsort(encoded.plan.keys[prompts], kind="stable")
        self._tokens = encoded.plan.lengths[prompts][self._order]

    @cached_property
    def numbers(self) -> Numbers:
        """Return the numbers that were measured on single prompts. An accelerator that is still
        computing them works on the metrics of vectors by then."""
        return self.encoded.read_numbers()

    def read_site(self, index: int, device: torch.device | str = "cpu") -> SiteVectors:
        """Return the vectors of one site, sorted by the prompts' keys."""
        order = torch.from_numpy(self._order).to(device)
        vectors = torch.as_tensor(self.encoded.read_vectors(index)).to(device)[order]
        views = vectors[:, 1:] if vectors.shape[1] > 1 else None
        return SiteVectors(vectors[:, 0], views, torch.argsort(order))

    def estimate_means(self, index: int) -> SiteEstimates:
        """Return the metrics at a site that are means over prompts."""
        estimates: SiteEstimates = {}
        for metric in self.metrics:
            info = metric.info
            if info.level != "tokens":
                continue
            for sink in info.sinks:
                values = values_of(info.name, sink, self.numbers)[index][self._order]
                tokens = self._tokens - (1 if sink == "drop" else 0)
                for name in _with_raw(info):
                    estimate = estimate_prompts(metric, values, tokens, self.width, name)
                    estimates[info.name, sink, name] = estimate
        return estimates

    def estimate_site(
        self,
        site: SiteVectors,
        estimated: Mapping[str, Estimate] | None = None,
        names: Collection[str] | None = None,
    ) -> SiteEstimates:
        """Return the metrics of a site's vectors, all of them or those of some names.

        Metrics that are `estimated` already are taken as they are.
        """
        estimates: SiteEstimates = {}
        for metric in self.metrics:
            info = metric.info
            if info.level == "tokens" or (names is not None and info.name not in names):
                continue
            raw = (estimated or {}).get(info.name) or self._estimate(metric, site)
            for name in _with_raw(info):
                estimate = raw if name == "raw" else normalized(raw, name)
                estimates[info.name, "keep", name] = estimate
        return estimates

    def _estimate(self, metric: Metric, site: SiteVectors) -> Estimate:
        """Return the estimate of one metric. If one from outside fails now, after all the encoding,
        only its own values are lost."""
        undefined = Estimate(math.nan, len(site), self.width, undefined=len(site))
        if metric.info.level == "views" and len(site) < 2:
            return undefined
        try:
            raw = estimate_vectors(metric, site, self.options)
            if not isinstance(raw, Estimate):
                raise TypeError(f"estimate returned {type(raw).__name__}, not an Estimate")
            return raw
        except Exception as error:
            if not is_plugin(metric):
                raise
            self.failed.setdefault(metric.info.name, f"{type(error).__name__}: {error}")
            return replace(undefined, n=0)

    def add_intervals(self, sites: Sequence[SiteEstimates]) -> list[SiteValues]:
        """Return the values of sites with their intervals: resamples are drawn once for all."""
        estimates = [estimate for site in sites for estimate in site.values()]
        ends = iter(many_intervals(estimates, self.options.seed))
        return [
            {
                key: (
                    replace(estimate, influence=None),
                    Interval(estimate.value, *next(ends), estimate.n),
                )
                for key, estimate in site.items()
            }
            for site in sites
        ]


def _with_raw(info: MetricInfo) -> list[Normalization]:
    more_names: list[Normalization] = [name for name in info.normalizations if name != "raw"]
    return ["raw", *more_names]


def measure_sites(estimator: SiteEstimator, count: int) -> Iterator[SiteValues]:
    """Yield the values of each site: sites side by side, one thread each."""
    _ = estimator.numbers  # once, before all threads need them
    size = 4 * len(estimator.encoded.prompts) * estimator.rows_per_prompt * estimator.width

    def measure(index: int) -> SiteValues:
        estimates = estimator.estimate_means(index)
        estimates |= estimator.estimate_site(estimator.read_site(index))
        return estimator.add_intervals([estimates])[0]

    at_once = _SITES_AT_ONCE if size <= _LARGEST_SITE else 1
    return map_concurrently("sites", measure, range(count), at_once)


def make_table(
    estimator: SiteEstimator,
    sites: Sequence[Site],
    measured: Iterator[SiteValues],
    advance: Callable[[int], None],
) -> ProfileTable:
    """Return the table of all sites from their values, in order."""
    undefined: dict[str, dict[str, int]] = defaultdict(dict)
    warnings: list[str] = []
    rows: list[list[object]] = []
    for site, values in zip(sites, measured, strict=True):
        for metric in estimator.metrics:
            info = metric.info
            for sink in info.sinks:
                raw, _ = values[info.name, sink, "raw"]
                if raw.undefined:
                    label = f"{info.name} (sink dropped)" if sink == "drop" else info.name
                    undefined[label][site.name] = raw.undefined
                elif not math.isfinite(raw.value):
                    warnings.append(f"{info.name} at {site.name} has no value there.")
                for name in info.normalizations:
                    estimate, interval = values[info.name, sink, name]
                    row = Measured(site, info.name, name, sink, interval, estimate)
                    rows.append(
                        [None if column.of is None else column.of(row) for column in PROFILE]
                    )
        advance(1)
    warnings += [
        f"{name} has no value where its code failed ({reason})."
        for name, reason in estimator.failed.items()
    ]
    columns = zip(names(PROFILE), map(list, zip(*rows, strict=True)), strict=True)
    return ProfileTable(pd.DataFrame(dict(columns)), undefined, warnings)


def map_items(task: ProfileTask, encoded: EncodedItems) -> LayerMap | None:
    """Return the items' own vectors at every whole layer as a map; views are left out."""
    layers = [
        (int(site.layer), i)
        for i, site in enumerate(task.sites)
        if site.layer is not None and site.name == site_of(site.layer)
    ]
    if not layers:
        return None
    order = np.argsort(encoded.prompts, kind="stable")
    keys = [int(key).to_bytes(8, "big") for key in task.items.keys[encoded.prompts[order]]]
    places = order[pick(keys)]
    shown = task.items.describe(encoded.prompts[places])
    reading = Vectors(
        "profile",
        f"mean of the tokens, final norm {task.config.final_norm}",
        [layer for layer, _ in layers],
        max(layer for layer, _ in layers),
        (torch.as_tensor(encoded.read_vectors(i))[places, 0].cpu().numpy() for _, i in layers),
    )
    return make_map(
        task.model.name,
        task.items.name,
        task.model.n_blocks,
        [reading],
        count=len(places),
        total=len(encoded.prompts),
        texts=shown.texts,
        columns=shown.columns,
        pictures=shown.pictures,
        kind=task.items.kind,
    )
