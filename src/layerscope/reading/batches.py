"""The loop that every reading of states goes through: rows in batches of similar length, each handed to a reduction.

A reduction runs the model under its hooks and keeps what it is for: `capture.Reducer` pooled vectors and token measures (for
profiles), `capture.pooling.Pooler` every kind of pooling (for evaluations), the states of all tokens (for probes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from layerscope.capture import Batch, run_batches, token_budget
from layerscope.models import LoadedModel
from layerscope.models.inputs import Row


class BatchRunner:
    """Makes batches for a model, and remembers how many tokens of a batch fit in memory.

    Which items share a batch decides the last digits of their states: every reading batches by the same rules.
    """

    def __init__(self, model: LoadedModel, batch_size: int | None = None) -> None:
        self.model, self.batch_size = model, batch_size
        self.tokens = token_budget(model.device, model.width)

    def run(self, rows: Sequence[Row], reduce: Callable[[list[int], Batch], None]) -> None:
        """Call `reduce(numbers, batch)` until every row has been in a batch; the numbers say which rows.

        A batch that does not fit in memory is split and tried again: `reduce` must leave no trace of a batch that failed.
        """
        self.run_lengths(self.model.lengths(rows), lambda numbers: self.model.make_batch([rows[i] for i in numbers]), reduce)

    def run_lengths(
        self, lengths: Sequence[int], make: Callable[[list[int]], Batch], reduce: Callable[[list[int], Batch], None]
    ) -> None:
        """The same for items that are read when their batch is made: `make(numbers)` gives the batch."""
        self.tokens = run_batches(lengths, lambda numbers: reduce(numbers, make(numbers)), self.tokens, self.batch_size)
