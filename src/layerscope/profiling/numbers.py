"""Per-prompt numbers of all sites, and the table made of them: in memory for what is small, in a file for what may not be."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pandas as pd

from layerscope.capture import Site
from layerscope.metrics import PromptValues
from layerscope.reading import Plan
from layerscope.store import RunFolder, Shard, ShardStore, atomic
from layerscope.store.checked import DamagedFileError

_AT_ONCE = 4096  # prompts
# columns of the per-prompt table by field; a field that is not here is that of one metric, `name.keep` or `name.drop`
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
    """The numbers (fields, sites, prompts) of finished shards, prompts in the order of the shards. Empty: none were asked for."""

    def __init__(self, fields: Sequence[str], sites: int, prompts: np.ndarray, held: np.ndarray | Path) -> None:
        self.fields, self.sites, self.prompts = list(fields), sites, prompts
        self._held = held
        self._sums: dict[tuple[int, int], int] = {}  # CRC-32 of each row of a file

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> PromptNumbers:
        """Of shards in memory."""
        prompts = np.concatenate([shard.prompts for shard in shards])
        fields = list(shards[0].values)
        if not fields:
            return cls([], 0, prompts, np.empty((0, 0, len(prompts))))
        held = np.stack([np.concatenate([shard.values[name] for shard in shards], axis=1) for name in fields])
        return cls(fields, held.shape[1], prompts, held)

    @classmethod
    def gathered(cls, store: ShardStore, shards: Sequence[np.ndarray], file: Path) -> PromptNumbers:
        """Of shards on disk, written into one file where a site's numbers lie side by side. A few shards are read at a time."""
        prompts = np.concatenate(shards)
        first = store.read(0).values
        fields = list(first)
        sites = len(first[fields[0]]) if fields else 0
        made = cls(fields, sites, prompts, file)
        if not fields:
            return made
        with atomic.explained(file):
            made._gather(store, shards, file)
        return made

    def _gather(self, store: ShardStore, shards: Sequence[np.ndarray], file: Path) -> None:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            start, waiting = 0, []
            for index in range(len(shards)):
                waiting.append(store.read(index).values)
                if len(waiting) * len(shards[0]) >= _AT_ONCE or index + 1 == len(shards):
                    block = np.stack([np.concatenate([values[name] for values in waiting], axis=1) for name in self.fields])
                    self._write(descriptor, block.astype(np.float64, copy=False), start)
                    start, waiting = start + block.shape[2], []
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, block: np.ndarray, start: int) -> None:
        for i, by_site in enumerate(block):
            for j, numbers in enumerate(by_site):
                at = memoryview(np.ascontiguousarray(numbers).tobytes())
                self._sums[i, j] = zlib.crc32(at, self._sums.get((i, j), 0))
                where = 8 * ((i * self.sites + j) * len(self.prompts) + start)
                while at:  # a full disk writes less than asked for, then says so
                    done = os.pwrite(descriptor, at, where)
                    at, where = at[done:], where + done

    def row(self, field: str, site: int, start: int = 0, stop: int | None = None) -> np.ndarray:
        """One field's numbers at a site (prompts,), or of some prompts."""
        i, n = self.fields.index(field), len(self.prompts)
        stop = n if stop is None else min(stop, n)
        if isinstance(self._held, np.ndarray):
            return self._held[i, site, start:stop]
        where = 8 * ((i * self.sites + site) * n + start)
        numbers = np.fromfile(self._held, dtype=np.float64, count=stop - start, offset=where)
        if len(numbers) != stop - start or (start == 0 and stop == n and zlib.crc32(numbers.data) != self._sums[i, site]):
            raise DamagedFileError(self._held, "its checksum does not match")
        return numbers

    def block(self, field: str, start: int, stop: int) -> np.ndarray:
        """One field's numbers of some prompts (sites, prompts)."""
        return np.stack([self.row(field, site, start, stop) for site in range(self.sites)])


class PromptOrder:
    """The canonical order of prompts (by key) and their token counts, found once for all sites and metrics."""

    def __init__(self, prompts: np.ndarray, plan: Plan, width: int) -> None:
        keys, tokens = plan.keys[prompts], plan.lengths[prompts]
        self._order = np.argsort(keys, kind="stable")
        self._like = {}
        for sink, left_out in (("keep", 0), ("drop", 1)):
            these = PromptValues(width)
            these.update(np.zeros(len(keys)), tokens[self._order] - left_out, keys[self._order])
            self._like[sink] = these.with_values(np.broadcast_to(0.0, len(keys)))  # without what `these` holds beside

    def values(self, numbers: np.ndarray, sink: str) -> PromptValues:
        """One number per prompt, given in the order of the shards; of the tokens but for the sink where that is dropped."""
        return self._like[sink].with_values(numbers[self._order])


@dataclass(frozen=True)
class PromptTable:
    """The per-prompt table, made when it is asked for: one row per prompt and site. Undefined values are empty."""

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

        folder.fill_table("prompts", stream_parts)

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

            def column(
                name: str, start: int = start, stop: int = stop
            ) -> np.ndarray:  # prompt by prompt, its sites in their order
                return numbers.block(name, start, stop).T.ravel()

            yield pd.DataFrame(
                {
                    "prompt": prompts.repeat(each),
                    "text_key": plan.keys[prompts].repeat(each),
                    "tokens": plan.lengths[prompts].repeat(each),
                    "truncated": plan.truncated[prompts].repeat(each),
                    "site": np.tile(names, len(prompts)),
                    "layer": np.tile(layers, len(prompts)),
                    **{column_of(name): column(name).astype(np.int64) if name in _COUNTS else column(name) for name in fields},
                }
            )


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """A per-prompt table by number of prompt, the sites of each in their order."""
    return table.sort_values("prompt", kind="stable", ignore_index=True)
