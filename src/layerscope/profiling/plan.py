"""The plan of a profile: which items are read, and the shards they form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from layerscope.capture import token_budget
from layerscope.errors import DataError
from layerscope.models import LoadedModel
from layerscope.models.inputs import ItemReader, Part, Row

__all__ = [
    "Plan",
    "choose_shard_size",
    "items_per_batch",
    "join_plan",
    "make_plan",
    "read_rows",
    "rows_by_number",
    "shards_by_length",
]

_SHARD_BYTES = 96 * 2**20
_SHARD_BYTES_ON_GPU = 256 * 2**20
_USUAL_LENGTH = 128  # tokens, where there is no limit


@dataclass(frozen=True)
class Plan:
    """Items by number: their keys (from their content), token counts, which were cut, and the
    shards they form.

    `rows` is what the model is run on, for every item, where that takes little memory.
    """

    keys: np.ndarray
    lengths: np.ndarray
    truncated: np.ndarray
    no_tokens: int
    max_length: int
    shards: list[np.ndarray]
    rows: Mapping[int, Row] | None = None

    @property
    def n_prompts(self) -> int:
        """Return the number of items that are read."""
        return sum(len(shard) for shard in self.shards)


def make_plan(reader: ItemReader, shard_size: int) -> Plan:
    """Count the tokens of all items and cut them, longest first, into shards."""
    survey = reader.survey(np.arange(len(reader.items)))
    keys = reader.items.keys
    return join_plan(reader, [survey], shards_by_length(survey, keys, shard_size), keys)


def shards_by_length(survey: Part, keys: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut items into shards, longest first: memory that does not suffice is found out at once. Ties
    by key, so that order never matters."""
    has_tokens = survey.lengths > 0
    numbers = survey.numbers[has_tokens]
    order = numbers[np.lexsort((keys[numbers], -survey.lengths[has_tokens]))]
    return [order[start : start + size] for start in range(0, len(order), size)]


def join_plan(
    reader: ItemReader, surveys: Sequence[Part], shards: list[np.ndarray], keys: np.ndarray
) -> Plan:
    """Return the plan of all items, which were surveyed in parts."""
    count = len(reader.items)
    lengths = np.zeros(count, dtype=np.int64)
    truncated = np.zeros(count, dtype=bool)
    for survey in surveys:
        lengths[survey.numbers] = survey.lengths
        truncated[survey.numbers] = survey.truncated
    usable = int((lengths > 0).sum())
    if not usable:
        raise DataError(
            f"the tokenizer of {reader.model.name} finds no token in any of the {count} "
            f"{reader.items.kind}."
        )
    fits = sum(survey.size for survey in surveys) <= reader.most_kept
    has_rows = fits and all(survey.rows is not None for survey in surveys)
    limit = int(lengths.max()) if reader.max_length is None else reader.max_length
    rows = rows_by_number(surveys) if has_rows else None
    return Plan(keys, lengths, truncated, count - usable, limit, shards, rows)


def rows_by_number(surveys: Sequence[Part]) -> dict[int, Row]:
    """Return the rows that surveys hold, by number of item."""
    return {
        int(number): row
        for survey in surveys
        for number, row in zip(survey.numbers, survey.rows or (), strict=True)
    }


def read_rows(reader: ItemReader, plan: Plan, shard: np.ndarray) -> Sequence[Row]:
    """Return the rows of a shard's items."""
    if plan.rows is None:
        return reader.read(shard)
    return [plan.rows[i] for i in shard]


def items_per_batch(
    model: LoadedModel, max_length: int | None, views: int, most: int | None = None
) -> int:
    """Return the number of items whose views fill a batch if all are as long as they may be.

    It is at least 1, and 0 without views. A batch has `most` texts.
    """
    if not views:
        return 0
    texts = token_budget(model.device, model.width) // (max_length or _USUAL_LENGTH)
    return max(1, min(texts, most or texts) // views)


def choose_shard_size(
    device_type: str, sites: int, views: int, width: int, item_bytes: int = 0, per_batch: int = 0
) -> int:
    """Return the items of a shard: a minute or so of work on a CPU, full batches on a GPU, and a
    bounded amount of memory.

    `item_bytes` is the size of one item's input, where that is more than a few token ids. The views
    of `per_batch` items fill a batch on a GPU: a shard has a multiple of them, as its last batch
    would be a part of one.
    """
    is_gpu = device_type == "cuda"
    most = 32 if device_type == "cpu" else 512
    room = _SHARD_BYTES_ON_GPU if is_gpu else _SHARD_BYTES
    item_size = (1 + views) * max(item_bytes, sites * width * 4)
    size = max(4, min(most, room // item_size))
    return size - size % per_batch if is_gpu and 0 < per_batch <= size else size
