"""Batches of items through a model: each is handed to a reduction.

A reduction runs the model under its hooks and keeps what it is for: `capture.Reducer` pooled
vectors and token measures (for profiles), `capture.pooling.Pooler` every kind of pooling (for
evaluations). `read_states` shows the states themselves (for probes and studies).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from layerscope.capture import Batch, Capture, FinalNorm, Site, run_batches, token_budget
from layerscope.capture.hooks import apply_norm
from layerscope.models import LoadedModel
from layerscope.models.inputs import Row

__all__ = ["BatchRunner", "read_states"]


class BatchRunner:
    """Makes batches for a model, and remembers how many tokens of a batch fit in memory.

    Which items share a batch decides the last digits of their states: every reading batches by the
    same rules.
    """

    def __init__(self, model: LoadedModel, batch_size: int | None = None) -> None:
        self.model = model
        self.batch_size = 1 if getattr(model, "one_at_a_time", False) else batch_size
        self.tokens = token_budget(model.device, model.width)

    def run(self, rows: Sequence[Row], reduce: Callable[[list[int], Batch], None]) -> None:
        """Call `reduce(numbers, batch)` until every row has been in a batch; the numbers say which
        rows.

        A batch that does not fit in memory is split and tried again: `reduce` must leave no trace
        of a batch that failed.
        """

        def process(numbers: list[int]) -> None:
            reduce(numbers, self.model.make_batch([rows[i] for i in numbers]))

        lengths = self.model.lengths(rows)
        self.tokens = run_batches(lengths, process, self.tokens, self.batch_size)
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

    Rows come in batches of similar length, not in the order given: `numbers` says which they are.
    """
    with Capture(model.anatomy, sites, final_norm) as capture:

        def run(numbers: list[int], batch: Batch) -> None:
            def read(site: int, raw: Tensor, norm: nn.Module | None) -> None:
                look(numbers, batch, site, raw, apply_norm(norm, raw))

            capture.run(lambda: model.run(batch), read)

        BatchRunner(model, batch_size).run(rows, run)
