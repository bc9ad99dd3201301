"""From items to reduced states: plan the items, run the model on batches, keep what a reduction
keeps.

Every reading of states goes through here. `make_plan` says which items are read, in which shards;
`BatchRunner` runs the model on batches of similar length and hands each to a reduction. A reduction
runs the model under its hooks and keeps what it is for: `capture.Reducer` pooled vectors and token
measures (for profiles), `capture.pooling.Pooler` every kind of pooling (for evaluations), the
states of all tokens (for probes). `read_states` shows the states themselves to callers that need
something else of them (studies).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from layerscope.capture import Batch, Capture, FinalNorm, Site, run_batches, token_budget
from layerscope.capture.hooks import apply_norm
from layerscope.errors import DataError
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Part, Row

__all__ = [
    "BatchRunner",
    "Plan",
    "choose_shard_size",
    "items_per_batch",
    "join_plan",
    "make_plan",
    "read_rows",
    "read_states",
    "rows_by_number",
    "shards_by_length",
]


class BatchRunner:
    """Makes batches for a model, and remembers how many tokens of a batch fit in memory.

    Which items share a batch decides the last digits of their states: every reading batches by the
    same rules.
    """

    def __init__(self, model: LoadedModel, batch_size: int | None = None) -> None:
        self.model, self.batch_size = (
            model,
            1 if getattr(model, "one_at_a_time", False) else batch_size,
        )
        self.tokens = token_budget(model.device, model.width)

    def run(self, rows: Sequence[Row], reduce: Callable[[list[int], Batch], None]) -> None:
        """Call `reduce(numbers, batch)` until every row has been in a batch; the numbers say which
        rows.

        A batch that does not fit in memory is split and tried again: `reduce` must leave no trace
        of a batch that failed.
        """
        self.run_lengths(
            self.model.lengths(rows),
            lambda numbers: self.model.make_batch([rows[i] for i in numbers]),
            reduce,
        )

    def run_lengths(
        self,
        lengths: Sequence[int],
        make: Callable[[list[int]], Batch],
        reduce: Callable[[list[int], Batch], None],
    ) -> None:
        """The same for items that are read when their batch is made: `make(numbers)` gives the
        batch."""
        self.tokens = run_batches(
            lengths, lambda numbers: reduce(numbers, make(numbers)), self.tokens, self.batch_size
        )
        self.model.check_files()


Look = Callable[[list[int], Batch, int, Tensor, Tensor], None]
"""`look(numbers, batch, site, raw states, states)` sees the states (rows, tokens, width) of some
rows at one site."""


def read_states(
    model: LoadedModel,
    rows: Sequence[Row],
    sites: Sequence[Site],
    final_norm: FinalNorm,
    look: Look,
    batch_size: int | None = None,
) -> None:
    """Run rows through a model and show every site's states; nothing of them is kept beyond `look`.

    For what no reduction of `capture` does. Rows come in batches of similar length, not in the
    order given: `numbers` says which they are.
    """
    with Capture(model.anatomy, sites, final_norm) as capture:

        def run(numbers: list[int], batch: Batch) -> None:
            def read(site: int, raw: Tensor, norm: nn.Module | None) -> None:
                look(numbers, batch, site, raw, apply_norm(norm, raw))

            capture.run(lambda: model.run(batch), read)

        BatchRunner(model, batch_size).run(rows, run)


_SHARD_BYTES = {"cpu": 96 * 2**20, "cuda": 256 * 2**20}
_USUAL_LENGTH = 128  # tokens, where there is no limit


@dataclass(frozen=True)
class Plan:
    """Items by number: their keys (from their content), token counts, which were cut, and the
    shards they form."""

    keys: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    no_tokens: int
    max_length: int
    shards: list[np.ndarray]
    rows: Mapping[int, Row] | None = None
    """What the model is run on, for every item, where that takes little memory."""

    @property
    def n_prompts(self) -> int:
        """Items that are read."""
        return int(sum(len(s) for s in self.shards))


def make_plan(reader: ItemReader, shard_size: int) -> Plan:
    """Count the tokens of all items and cut them, longest first, into shards."""
    whole, keys = reader.survey(np.arange(len(reader.items))), reader.items.keys
    return join_plan(reader, [whole], shards_by_length(whole, keys, shard_size), keys)


def shards_by_length(part: Part, keys: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut items into shards, longest first: memory that does not suffice is found out at once. Ties
    by key, so that order never matters."""
    usable = part.lengths > 0
    some = part.numbers[usable]
    order = some[np.lexsort((keys[some], -part.lengths[usable]))]
    return [order[i : i + size] for i in range(0, len(order), size)]


def join_plan(
    reader: ItemReader, parts: Sequence[Part], shards: list[np.ndarray], keys: np.ndarray
) -> Plan:
    """Return the plan of all items, which were looked at in parts."""
    count = len(reader.items)
    lengths, truncated = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool)
    for part in parts:
        lengths[part.numbers], truncated[part.numbers] = part.lengths, part.truncated
    usable = int((lengths > 0).sum())
    if not usable:
        raise DataError(
            f"the tokenizer of {reader.model.name} finds no token in any of the {count} {reader.items.kind}."
        )
    in_memory = (
        all(part.rows is not None for part in parts)
        and sum(part.size for part in parts) <= reader.most_kept
    )
    limit = int(lengths.max()) if reader.max_length is None else reader.max_length
    rows = rows_by_number(parts) if in_memory else None
    return Plan(keys, lengths, truncated, count - usable, limit, shards, rows)


def rows_by_number(parts: Sequence[Part]) -> dict[int, Row]:
    """Return the rows that parts hold, by number of item."""
    return {
        int(number): row
        for part in parts
        for number, row in zip(part.numbers, part.rows or (), strict=True)
    }


def read_rows(reader: ItemReader, plan: Plan, shard: np.ndarray) -> Sequence[Row]:
    """The rows of a shard's items."""
    return reader.read(shard) if plan.rows is None else [plan.rows[i] for i in shard]


def items_per_batch(
    model: LoadedModel, limit: int | None, views: int, most: int | None = None
) -> int:
    """Of how many items the views fill a batch if they are all as long as they may be; at least 1.
    `most` texts are in one."""
    if not views:
        return 0
    tokens = token_budget(model.device, model.width)
    texts = tokens // (limit or _USUAL_LENGTH)
    return max(1, min(texts, most or texts) // views)


def choose_shard_size(
    device_type: str, sites: int, views: int, width: int, item_bytes: int = 0, per_batch: int = 0
) -> int:
    """Items per shard: a minute or so of work on a CPU, full batches on a GPU, and a bounded amount
    of memory.

    `item_bytes` is what one item's input takes, where that is more than a few token ids. Of
    `per_batch` items the views fill a batch on a GPU: a shard has a multiple of them, as its last
    batch would be a part of one.
    """
    room = _SHARD_BYTES.get(device_type, _SHARD_BYTES["cpu"])
    fits = room // (sites * (1 + views) * width * 4)
    if item_bytes:
        fits = min(fits, room // ((1 + views) * item_bytes))
    size = int(max(4, min(32 if device_type == "cpu" else 512, fits)))
    return size - size % per_batch if device_type == "cuda" and 0 < per_batch <= size else size
