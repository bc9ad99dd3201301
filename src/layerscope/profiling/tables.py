"""From shards to tables: every metric at every site, with intervals, one site at a time so that memory stays bounded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from layerscope.capture import Site
from layerscope.metrics import Estimate, Options, PooledRows, PromptValues, ViewRows, get_metric, many_intervals
from layerscope.metrics.jackknife import FOLDS
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.numbers import PromptNumbers
from layerscope.profiling.plan import Plan
from layerscope.spectra import side_by_side
from layerscope.store import Shard, StoredVectors

COLUMNS = ["site", "layer", "depth", "metric", "normalization", "sink", "value", "ci_low", "ci_high", "n"]

# which per-prompt field feeds which metric; `{}` stands for the sink setting
_TOKEN_SOURCES = {
    "prompt_entropy": "entropy_{}",
    "curvature": "curvature_{}",
    "sink_ratio": "sink_ratio",
    "sink_first": "sink_position",
}
_BOUND_SLACK = 1e-6
_SITES_AT_ONCE = 4  # each holds some tens of MB: memory stays bounded on a machine with many cores
_BYTES_HELD = 8 * 2**20  # of one site's pooled vectors
_SHARE_OF_MEMORY = 0.4  # of what is free on a GPU, for the sites that are worked on together

_Row = tuple[list[Any], Estimate]  # where a value belongs, and the value


class TableBuilder:
    """Computes the profile table and remembers what a reader must be told: undefined values, values out of bounds."""

    def __init__(
        self, config: ProfileConfig, sites: Sequence[Site], plan: Plan, width: int, device: torch.device | None = None
    ) -> None:
        self.config, self.sites, self.plan, self.width = config, list(sites), plan, width
        self.device = device if device is not None and device.type == "cuda" else None
        self.undefined: dict[str, dict[str, int]] = defaultdict(dict)
        self.flat: dict[str, int] = {}
        self.warnings: list[str] = []

    def build(
        self, shards: Sequence[Shard], advance: Callable[[int], None] = lambda n: None, numbers: PromptNumbers | None = None
    ) -> pd.DataFrame:
        """The tidy table, one row per site, metric, normalisation and sink setting. `numbers`: what the shards' values are."""
        self._numbers = PromptNumbers.of(shards) if numbers is None else numbers
        rows: list[list[Any]] = []
        for site_rows in self._on_gpu(shards) if self.device is not None else self._on_cpu(shards):
            rows += site_rows
            advance(1)
        return pd.DataFrame(rows, columns=COLUMNS)

    def _on_cpu(self, shards: Sequence[Shard]) -> Iterator[list[list[Any]]]:
        """Sites side by side, one thread each."""

        def rows_of(index: int) -> list[list[Any]]:
            return self._with_intervals(self._site_estimates(index, *self._site_data(index, shards)))

        return side_by_side("sites", rows_of, range(len(self.sites)), _SITES_AT_ONCE)

    def _on_gpu(self, shards: Sequence[Shard]) -> Iterator[list[list[Any]]]:
        """Sites one after the other, what is costly for as many of them together as memory allows."""
        group = self._sites_together(sum(len(shard.prompts) for shard in shards))
        for start in range(0, len(self.sites), group):
            indices = range(start, min(start + group, len(self.sites)))
            data = {i: self._site_data(i, shards) for i in indices}
            for name in self.config.metrics:
                metric = get_metric(name)(self.config.options)
                if metric.info.level != "tokens":
                    metric.prepare([data[i][metric.info.level == "views"] for i in indices])
            estimates = [self._site_estimates(i, *data.pop(i)) for i in indices]
            every = iter(self._with_intervals([row for site in estimates for row in site]))
            for site in estimates:
                yield [next(every) for _ in site]

    def _sites_together(self, prompts: int) -> int:
        free, _ = torch.cuda.mem_get_info(self.device)
        side = min(prompts, self.width)
        folds = 3 * 8 * (FOLDS + 1) * side * side  # float64, its float32 copy and the solver's
        views = 3 * 8 * prompts * (1 + self.config.n_views) * self.width
        return max(1, int(_SHARE_OF_MEMORY * free / (folds + views)))

    def _site_data(self, index: int, shards: Sequence[Shard]) -> tuple[PooledRows, ViewRows]:
        pooled, views = PooledRows(), ViewRows()
        # what takes much memory is read from disk when it is looked at, a shard at a time
        many = sum(len(shard.prompts) for shard in shards) * self.width * 4 > _BYTES_HELD and self.device is None
        for shard in shards:
            keys = self.plan.keys[shard.prompts]
            if many and not self.config.n_views and isinstance(shard.pooled, StoredVectors):
                pooled.update(shard.pooled.rows(index), keys)
                continue
            block: Any = shard.pooled[index]
            if self.device is not None:
                block = torch.as_tensor(block).to(self.device)
            pooled.update(block[:, 0], keys)
            if block.shape[1] > 1:
                views.update(block[:, 1:], keys)
        return pooled, views

    def _site_estimates(self, index: int, pooled: PooledRows, views: ViewRows) -> list[_Row]:
        rows, site = [], self.sites[index]
        for name in self.config.metrics:
            metric = get_metric(name)(self.config.options)
            for sink in metric.info.sinks:
                if metric.info.level == "tokens":
                    data: Any = self._prompt_values(name, sink, index)
                else:
                    data = pooled if metric.info.level == "pooled" else views
                rows += self._metric_rows(metric, data, site, sink)
        if "curvature" in self.config.metrics:
            flat = int(np.nansum(self._numbers.row("flat", index)))
            if flat:
                self.flat[site.name] = flat
        return rows

    def _with_intervals(self, rows: list[_Row]) -> list[list[Any]]:
        ends = many_intervals([estimate for _, estimate in rows], self.config.options.seed)
        return [[*place, e.value, low, high, e.n] for (place, e), (low, high) in zip(rows, ends, strict=True)]

    def _prompt_values(self, name: str, sink: str, index: int) -> PromptValues:
        data = PromptValues(self.width)
        prompts = self._numbers.prompts
        values = self._numbers.row(_TOKEN_SOURCES[name].format(sink), index)
        if name == "sink_first":
            values = (values == 0).astype(float)
        data.update(values, self.plan.lengths[prompts] - (1 if sink == "drop" else 0), self.plan.keys[prompts])
        return data

    def _metric_rows(self, metric: Any, data: Any, site: Site, sink: str) -> list[_Row]:
        info, options = metric.info, self.config.options
        if info.level == "views" and len(data) < 2:
            raw = Estimate(math.nan, len(data), self.width, undefined=len(data))
        else:
            raw = metric.estimate(data)
        label = info.name if sink == "keep" else f"{info.name} (sink dropped)"
        if raw.undefined:
            self.undefined[label][site.name] = raw.undefined
        self._check_bounds(info, raw, site, options)
        rows = []
        for normalization in info.normalizations:
            estimate = raw if normalization == "raw" else metric.normalized(data, raw, normalization)
            rows.append(([site.name, site.layer, site.depth, info.name, normalization, sink], estimate))
        return rows

    def _check_bounds(self, info: Any, raw: Estimate, site: Site, options: Options) -> None:
        if not math.isfinite(raw.value):
            return
        low, high = info.bounds(raw.n, raw.d, options)
        slack = _BOUND_SLACK * max(1.0, abs(raw.value))
        if not low - slack <= raw.value <= high + slack:
            self.warnings.append(f"{info.name} at {site.name} is {raw.value:.6g}, outside its bounds ({info.bounds_text}).")
