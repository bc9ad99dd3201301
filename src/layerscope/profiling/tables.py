"""From shards to tables: every metric at every site, with intervals, one site at a time so that
memory stays bounded.

Values of single prompts are gathered from the shards first (`PromptNumbers`), and become a table
when somebody asks.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd
import torch

from layerscope.capture import Site
from layerscope.capture.batches import is_out_of_memory, release_memory
from layerscope.core.columns import PROFILE, Measured, names
from layerscope.core.statistics import Interval
from layerscope.forward import Plan
from layerscope.metrics import (
    Estimate,
    Options,
    PooledRows,
    PromptValues,
    ViewRows,
    get_metric,
    many_intervals,
)
from layerscope.metrics.base import Metric, PromptMean
from layerscope.metrics.registry import is_plugin
from layerscope.metrics.samples import FOLDS
from layerscope.profiling.config import ProfileConfig
from layerscope.spectra import map_concurrently
from layerscope.spectra.execution import free_memory
from layerscope.store import RunFolder, Shard, ShardStore, StoredVectors, atomic

_AT_ONCE = 4096  # prompts
# columns of the per-prompt table by field; a field that is not here is that of one metric,
# `name.keep` or `name.drop`
_COLUMNS = {
    "entropy_keep": "prompt_entropy",
    "entropy_drop": "prompt_entropy_sink_dropped",
    "curvature_keep": "curvature",
    "curvature_drop": "curvature_sink_dropped",
    "flat": "flat_differences",
    "sink_ratio": "sink_ratio",
    "sink_position": "sink_position",
}
_COUNTS = ("flat", "sink_position")


def column_of(field: str) -> str:
    """The column of the per-prompt table that shows a field.

    >>> column_of("entropy_drop"), column_of("my_metric.keep"), column_of("my_metric.drop")
    ('prompt_entropy_sink_dropped', 'my_metric', 'my_metric_sink_dropped')
    """
    name, _, sink = field.rpartition(".")
    return _COLUMNS.get(field) or (f"{name}_sink_dropped" if sink == "drop" else name)


class PromptNumbers:
    """The numbers (fields, sites, prompts) of finished shards, prompts in the order of the shards.
    Empty: none were asked for."""

    def __init__(self, fields: Sequence[str], prompts: np.ndarray, values: np.ndarray) -> None:
        self.fields, self.prompts, self._values = list(fields), prompts, values

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> PromptNumbers:
        """Of shards in memory."""
        prompts = np.concatenate([shard.prompts for shard in shards])
        fields = list(shards[0].values)
        if not fields:
            return cls([], prompts, np.empty((0, 0, len(prompts))))
        values = np.stack(
            [np.concatenate([shard.values[name] for shard in shards], axis=1) for name in fields]
        )
        return cls(fields, prompts, values)

    @classmethod
    def gathered(cls, store: ShardStore, shards: Sequence[np.ndarray], file: Path) -> PromptNumbers:
        """Of shards on disk, written into one file where a site's numbers lie side by side."""
        first = store.read(0)
        if not first.values:
            return cls.of([replace(first, prompts=np.concatenate(shards))])
        fields, prompts = list(first.values), np.concatenate(shards)
        shape = (len(fields), len(first.values[fields[0]]), len(prompts))
        with atomic.explained(file):
            atomic.reserve(file, 8 * math.prod(shape))
        values = np.memmap(file, np.float64, "r+", shape=shape)
        start = 0
        for index, shard in enumerate(shards):
            numbers = store.read(index).values
            for i, name in enumerate(fields):
                values[i, :, start : start + len(shard)] = numbers[name]
            start += len(shard)
        return cls(fields, prompts, values)

    def row(self, field: str, site: int) -> np.ndarray:
        """One field's numbers at a site (prompts,)."""
        return self._values[self.fields.index(field), site]

    def block(self, field: str, start: int, stop: int) -> np.ndarray:
        """One field's numbers of some prompts (sites, prompts)."""
        return self._values[self.fields.index(field), :, start:stop]


class PromptOrder:
    """The canonical order of prompts (by key) and their token counts, found once for all sites and
    metrics."""

    def __init__(self, prompts: np.ndarray, plan: Plan, width: int) -> None:
        keys, tokens = plan.keys[prompts], plan.lengths[prompts]
        self._order = np.argsort(keys, kind="stable")
        self._like = {}
        for sink, left_out in (("keep", 0), ("drop", 1)):
            these = PromptValues(width)
            these.update(np.zeros(len(keys)), tokens[self._order] - left_out, keys[self._order])
            self._like[sink] = these.with_values(
                np.broadcast_to(0.0, len(keys))
            )  # without what `these` holds beside

    def values(self, numbers: np.ndarray, sink: str) -> PromptValues:
        """One number per prompt, given in the order of the shards; of the tokens but for the sink
        where that is dropped."""
        return self._like[sink].with_values(numbers[self._order])


@dataclass(frozen=True)
class PromptTable:
    """The per-prompt table, made when it is asked for: one row per prompt and site. Undefined
    values are empty."""

    sites: Sequence[Site]
    plan: Plan
    numbers: PromptNumbers

    def frame(self) -> pd.DataFrame:
        """The whole table, by number of prompt."""
        return in_order(pd.concat(list(self._parts()), ignore_index=True))

    def write(self, folder: RunFolder) -> None:
        """Write prompts.parquet part by part: rows are in the order in which prompts were read."""
        import pyarrow as pa
        from pyarrow import parquet

        def stream_parts(stream: BinaryIO) -> None:
            writer = None
            for part in self._parts():
                table = pa.Table.from_pandas(part, preserve_index=False)
                writer = writer or parquet.ParquetWriter(stream, table.schema)
                writer.write_table(table)
            if writer is not None:
                writer.close()

        folder.write_file("prompts.parquet", stream_parts)

    def _parts(self) -> Iterator[pd.DataFrame]:
        plan, numbers = self.plan, self.numbers
        if not numbers.fields:
            facts = {"text_key": plan.keys, "tokens": plan.lengths, "truncated": plan.truncated}
            yield pd.DataFrame({"prompt": np.arange(len(plan.lengths)), **facts})
            return
        fields = [name for name in _COLUMNS if name in numbers.fields]
        fields += [name for name in numbers.fields if name not in _COLUMNS]
        names = np.array([site.name for site in self.sites], dtype=object)
        layers = np.array([site.layer for site in self.sites])
        each = len(self.sites)
        for start in range(0, len(numbers.prompts), _AT_ONCE):
            prompts = numbers.prompts[start : start + _AT_ONCE]
            stop = start + len(prompts)

            columns = {}  # prompt by prompt, its sites in their order
            for name in fields:
                values = numbers.block(name, start, stop).T.ravel()
                columns[column_of(name)] = values.astype(np.int64) if name in _COUNTS else values
            yield pd.DataFrame(
                {
                    "prompt": prompts.repeat(each),
                    "text_key": plan.keys[prompts].repeat(each),
                    "tokens": plan.lengths[prompts].repeat(each),
                    "truncated": plan.truncated[prompts].repeat(each),
                    "site": np.tile(names, len(prompts)),
                    "layer": np.tile(layers, len(prompts)),
                    **columns,
                }
            )


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """A per-prompt table by number of prompt, the sites of each in their order."""
    return table.sort_values("prompt", kind="stable", ignore_index=True)


_BOUND_SLACK = 1e-6
_SITES_AT_ONCE = 4  # each holds some tens of MB: memory stays bounded on a machine with many cores
_BYTES_HELD = 8 * 2**20  # of one site's pooled vectors
_SHARE_OF_MEMORY = 0.4  # of what is free on a GPU, for the sites that are worked on together
_NUMBERS_HELD = (
    2**21
)  # influences of per-prompt means: those of a few sites wait for their intervals together


@dataclass(frozen=True)
class _Found:
    """A metric at one site: its raw value, and what it is under each normalization."""

    raw: Estimate  # without its influences, which may take much memory
    values: list[tuple[Estimate, Interval]]


_Site = dict[tuple[str, str], _Found]  # by metric and sink
_Estimates = tuple[Estimate, list[Estimate]]  # raw, and under each normalization


class TableBuilder:
    """Computes the profile table and remembers what a reader must be told: undefined values, values
    out of bounds."""

    def __init__(
        self,
        config: ProfileConfig,
        sites: Sequence[Site],
        plan: Plan,
        width: int,
        device: torch.device | None = None,
    ) -> None:
        self.config, self.sites, self.plan, self.width = config, list(sites), plan, width
        self.device = device if device is not None and device.type == "cuda" else None
        self.undefined: dict[str, dict[str, int]] = defaultdict(dict)
        self.flat: dict[str, int] = {}
        self.warnings: list[str] = []
        self._failed: dict[str, str] = {}
        self._metrics = [get_metric(name)(config.options) for name in config.metrics]

    @cached_property
    def numbers(self) -> PromptNumbers:
        """What was measured on single prompts."""
        return self._gather()

    def build(
        self,
        shards: Sequence[Shard],
        advance: Callable[[int], None] = lambda n: None,
        numbers: Callable[[], PromptNumbers] | None = None,
    ) -> pd.DataFrame:
        """The tidy table, one row per site, metric, normalization and sink setting.

        `numbers` gives the shards' values. It is called when they are needed: a GPU that is still
        computing them has been given the metrics of vectors by then.
        """
        self._gather = numbers or partial(PromptNumbers.of, shards)
        self._order = PromptOrder(
            np.concatenate([shard.prompts for shard in shards]), self.plan, self.width
        )
        self._found: dict[Any, Any] = {}  # the order of the vectors, the same at every site
        rows: list[list[Any]] = []
        measured = self._on_gpu(shards) if self.device is not None else self._on_cpu(shards)
        for index, found in enumerate(measured):
            rows += self._site_rows(index, found)
            advance(1)
        del self._order, self._found  # they grow with the prompts
        self.warnings += [
            f"{name} has no value where its code failed ({why})."
            for name, why in self._failed.items()
        ]
        return pd.DataFrame(
            dict(zip(names(PROFILE), map(list, zip(*rows, strict=True)), strict=True))
        )

    def _on_cpu(self, shards: Sequence[Shard]) -> Iterator[_Site]:
        """Sites side by side, one thread each."""
        _ = self.numbers  # once, before they all want them

        def measure(index: int) -> _Site:
            return self._with_intervals(
                [self._site_estimates(index, self._site_data(index, shards))]
            )[0]

        return map_concurrently("sites", measure, range(len(self.sites)), _SITES_AT_ONCE)

    def _on_gpu(self, shards: Sequence[Shard]) -> Iterator[_Site]:
        """Sites one after the other, what is costly for as many of them together as memory allows.

        The host's own work, the means of per-prompt numbers, is done while the GPU does what it has
        been given: not in a thread, since two that want Python at once hold each other up.
        """
        group = self._sites_together(sum(len(shard.prompts) for shard in shards))
        start = 0
        while start < len(self.sites):
            indices = range(start, min(start + group, len(self.sites)))
            try:
                found = self._group_on_gpu(indices, shards)
            except RuntimeError as error:
                if not is_out_of_memory(error) or group == 1:
                    raise
                group = (len(indices) + 1) // 2
                release_memory()
                continue
            start += len(indices)
            yield from found

    def _group_on_gpu(self, indices: range, shards: Sequence[Shard]) -> list[_Site]:
        data = [self._site_data(i, shards) for i in indices]
        # the last metrics first: what the host does after DiME is the least
        metrics = [
            metric
            for level in ("pooled", "views")
            for metric in reversed(self._metrics)
            if metric.info.level == level
        ]
        finishes = [
            metric.prepare([site[metric.info.level == "views"] for site in data])
            for metric in metrics
        ]
        found = self._means(indices)
        for metric, finish in zip(
            metrics, finishes, strict=True
        ):  # as the GPU comes to them: it goes on with the others
            if finish is not None:
                finish()
            made = self._with_intervals([self._estimates_of(metric, vectors=site) for site in data])
            for of_site, more in zip(found, made, strict=True):
                of_site.update(more)
        return found

    def _sites_together(self, prompts: int) -> int:
        side = min(prompts, self.width)
        folds = (
            6 * (FOLDS + 1) * side * side
        )  # bytes: float32, and half as much for what a few sites need in float64
        views = 6 * prompts * (1 + self.config.n_views) * self.width
        return max(1, int(_SHARE_OF_MEMORY * free_memory(self.device) / (folds + views)))

    def _site_data(self, index: int, shards: Sequence[Shard]) -> tuple[PooledRows, ViewRows]:
        pooled, views = PooledRows(), ViewRows()
        # what takes much memory is read from disk when it is looked at, a shard at a time
        many = (
            sum(len(shard.prompts) for shard in shards) * self.width * 4 > _BYTES_HELD
            and self.device is None
        )
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
        pooled.share_order(self._found)
        if len(views):
            views.share_order(self._found)
        return pooled, views

    def _means(self, indices: Sequence[int]) -> list[_Site]:
        """Metrics that are means over prompts at some sites; a few sites' intervals are drawn
        together."""
        infos = [metric.info for metric in self._metrics if metric.info.level == "tokens"]
        each = len(self.numbers.prompts) * sum(
            len(info.sinks) * len(info.normalizations) for info in infos
        )
        at_once = max(1, _NUMBERS_HELD // max(1, each))
        out: list[_Site] = []
        for start in range(0, len(indices), at_once):
            some = indices[start : start + at_once]
            out += self._with_intervals([self._site_estimates(index, None) for index in some])
        return out

    def _site_estimates(
        self, index: int, vectors: tuple[PooledRows, ViewRows] | None
    ) -> dict[tuple[str, str], _Estimates]:
        """Metrics that are means over prompts at a site, and metrics of its vectors, if those are
        given."""
        made: dict[tuple[str, str], _Estimates] = {}
        for metric in self._metrics:
            if vectors is not None or metric.info.level == "tokens":
                made |= self._estimates_of(metric, index, vectors)
        return made

    def _estimates_of(
        self,
        metric: Metric[Any],
        index: int | None = None,
        vectors: tuple[PooledRows, ViewRows] | None = None,
    ) -> dict[tuple[str, str], _Estimates]:
        """One metric at a site: from the index of the site, or from its vectors."""
        name, level = metric.info.name, metric.info.level
        if level == "tokens":
            assert isinstance(metric, PromptMean)
            assert index is not None
            return {
                (name, sink): self._estimates(metric, self._prompt_values(metric, sink, index))
                for sink in metric.info.sinks
            }
        assert vectors is not None
        return {
            (name, sink): self._estimates(metric, vectors[level == "views"])
            for sink in metric.info.sinks
        }

    def _with_intervals(self, sites: list[dict[tuple[str, str], _Estimates]]) -> list[_Site]:
        every = [
            estimate for site in sites for _, estimates in site.values() for estimate in estimates
        ]
        ends = iter(many_intervals(every, self.config.options.seed))

        def found(raw: Estimate, estimates: list[Estimate]) -> _Found:
            light = [replace(e, influence=None) for e in (raw, *estimates)]
            return _Found(light[0], [(e, Interval(e.value, *next(ends), e.n)) for e in light[1:]])

        return [{key: found(*made) for key, made in site.items()} for site in sites]

    def _prompt_values(self, metric: PromptMean, sink: str, index: int) -> PromptValues:
        return self._order.values(
            metric.from_field(self.numbers.row(metric.field(sink), index)), sink
        )

    def _estimates(self, metric: Any, data: Any) -> _Estimates:
        """One metric. If one from outside fails now, after all the encoding, only its own values
        are lost."""
        few = metric.info.level == "views" and len(data) < 2
        try:
            raw = (
                Estimate(math.nan, len(data), self.width, undefined=len(data))
                if few
                else metric.estimate(data)
            )
            if not isinstance(raw, Estimate):
                raise TypeError(f"estimate returned {type(raw).__name__}, not an Estimate")
            return raw, [
                raw if by == "raw" else metric.normalized(data, raw, by)
                for by in metric.info.normalizations
            ]
        except Exception as error:
            if not is_plugin(type(metric)):
                raise
            self._failed.setdefault(metric.info.name, f"{type(error).__name__}: {error}")
            nothing = Estimate(math.nan, 0, self.width, undefined=len(data))
            return nothing, [nothing] * len(metric.info.normalizations)

    def _site_rows(self, index: int, found: _Site) -> list[list[Any]]:
        """The rows of a site; what a reader must be told about it is noted."""
        rows: list[list[Any]] = []
        site = self.sites[index]
        for metric in self._metrics:
            info = metric.info
            for sink in info.sinks:
                measured = found[info.name, sink]
                if measured.raw.undefined:
                    label = info.name if sink == "keep" else f"{info.name} (sink dropped)"
                    self.undefined[label][site.name] = measured.raw.undefined
                self._check_bounds(info, measured.raw, site, self.config.options)
                for normalization, (estimate, value) in zip(
                    info.normalizations, measured.values, strict=True
                ):
                    row = Measured(site, info.name, normalization, sink, value, estimate)
                    rows.append(
                        [None if column.of is None else column.of(row) for column in PROFILE]
                    )
        if "curvature" in self.config.metrics:
            flat = int(np.nansum(self.numbers.row("flat", index)))
            if flat:
                self.flat[site.name] = flat
        return rows

    def _check_bounds(self, info: Any, raw: Estimate, site: Site, options: Options) -> None:
        if not math.isfinite(raw.value):
            if not raw.undefined:  # nothing else would say so
                self.warnings.append(
                    f"{info.name} at {site.name} is {raw.value}: it has no value there."
                )
            return
        low, high = info.bounds(raw.n, raw.d, options)
        slack = _BOUND_SLACK * max(1.0, abs(raw.value))
        if not low - slack <= raw.value <= high + slack:
            self.warnings.append(
                f"{info.name} at {site.name} is {raw.value:.6g}, outside its bounds ({info.bounds_text})."
            )
