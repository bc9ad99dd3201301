"""From shards to tables: every metric at every site, with intervals, one site at a time so that memory stays bounded."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from layerscope.capture import Site
from layerscope.metrics import Estimate, Options, PooledRows, PromptValues, ViewRows, get_metric, interval
from layerscope.profiling.config import ProfileConfig
from layerscope.profiling.plan import Plan
from layerscope.spectra import side_by_side
from layerscope.store import Shard

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


class TableBuilder:
    """Computes the profile table and remembers what a reader must be told: undefined values, values out of bounds."""

    def __init__(self, config: ProfileConfig, sites: Sequence[Site], plan: Plan, width: int) -> None:
        self.config, self.sites, self.plan, self.width = config, list(sites), plan, width
        self.undefined: dict[str, dict[str, int]] = defaultdict(dict)
        self.flat: dict[str, int] = {}
        self.warnings: list[str] = []

    def build(self, shards: Sequence[Shard], advance: Callable[[int], None] = lambda n: None) -> pd.DataFrame:
        """The tidy table, one row per site, metric, normalisation and sink setting."""
        rows: list[list[Any]] = []
        each = side_by_side("sites", lambda i: self._site_rows(i, self.sites[i], shards), range(len(self.sites)), _SITES_AT_ONCE)
        for site_rows in each:
            rows += site_rows
            advance(1)
        return pd.DataFrame(rows, columns=COLUMNS)

    def _site_rows(self, index: int, site: Site, shards: Sequence[Shard]) -> list[list[Any]]:
        pooled, views = PooledRows(), ViewRows()
        for shard in shards:
            keys = self.plan.keys[shard.prompts]
            block = shard.pooled[index]
            pooled.update(block[:, 0], keys)
            if block.shape[1] > 1:
                views.update(block[:, 1:], keys)
        rows = []
        for name in self.config.metrics:
            metric = get_metric(name)(self.config.options)
            for sink in metric.info.sinks:
                if metric.info.level == "tokens":
                    data: Any = self._prompt_values(name, sink, index, shards)
                else:
                    data = pooled if metric.info.level == "pooled" else views
                rows += self._metric_rows(metric, data, site, sink)
        if "curvature" in self.config.metrics:
            flat = int(sum(np.nansum(shard.values["flat"][index]) for shard in shards))
            if flat:
                self.flat[site.name] = flat
        return rows

    def _prompt_values(self, name: str, sink: str, index: int, shards: Sequence[Shard]) -> PromptValues:
        data = PromptValues(self.width)
        for shard in shards:
            values = shard.values[_TOKEN_SOURCES[name].format(sink)][index]
            if name == "sink_first":
                values = (values == 0).astype(float)
            tokens = self.plan.lengths[shard.prompts] - (1 if sink == "drop" else 0)
            data.update(values, tokens, self.plan.keys[shard.prompts])
        return data

    def _metric_rows(self, metric: Any, data: Any, site: Site, sink: str) -> list[list[Any]]:
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
            low, high = interval(estimate, options.seed)
            place = [site.name, site.layer, site.depth, info.name, normalization, sink]
            rows.append([*place, estimate.value, low, high, estimate.n])
        return rows

    def _check_bounds(self, info: Any, raw: Estimate, site: Site, options: Options) -> None:
        if not math.isfinite(raw.value):
            return
        low, high = info.bounds(raw.n, raw.d, options)
        slack = _BOUND_SLACK * max(1.0, abs(raw.value))
        if not low - slack <= raw.value <= high + slack:
            self.warnings.append(f"{info.name} at {site.name} is {raw.value:.6g}, outside its bounds ({info.bounds_text}).")


def prompt_table(sites: Sequence[Site], plan: Plan, shards: Sequence[Shard]) -> pd.DataFrame:
    """Per-prompt values: one row per prompt and site. Undefined values are empty."""
    frames = []
    for shard in shards:
        if not shard.values:
            continue
        n = len(shard.prompts)
        for index, site in enumerate(sites):
            value = {name: array[index] for name, array in shard.values.items()}
            frames.append(
                pd.DataFrame(
                    {
                        "prompt": shard.prompts,
                        "text_key": plan.keys[shard.prompts],
                        "tokens": plan.lengths[shard.prompts],
                        "truncated": plan.truncated[shard.prompts],
                        "site": [site.name] * n,
                        "layer": [site.layer] * n,
                        "prompt_entropy": value["entropy_keep"],
                        "prompt_entropy_sink_dropped": value["entropy_drop"],
                        "curvature": value["curvature_keep"],
                        "curvature_sink_dropped": value["curvature_drop"],
                        "flat_differences": value["flat"].astype(np.int64),
                        "sink_ratio": value["sink_ratio"],
                        "sink_position": value["sink_position"].astype(np.int64),
                    }
                )
            )
    if not frames:
        return pd.DataFrame(
            {"prompt": np.arange(len(plan.texts)), "text_key": plan.keys, "tokens": plan.lengths, "truncated": plan.truncated}
        )
    table = pd.concat(frames, ignore_index=True)
    return table.sort_values(["prompt", "layer"], kind="stable", ignore_index=True)
