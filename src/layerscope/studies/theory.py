"""The paper's theorems as experiments: does a computer find a matrix that breaks them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.errors import LayerscopeError
from layerscope.progress import Progress
from layerscope.studies.base import Option, Request, Result, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Theory(Study):
    """Lemma 1 and Theorems 1, 5, 6 and 7: as printed, corrected, and with the trace divided out."""

    name: ClassVar[str] = "theory"
    title: ClassVar[str] = "The paper's inequalities, tried"
    paper: ClassVar[str] = "Theorems 1, 5, 6, 7; Lemma 1; App. G"
    models: ClassVar[tuple[int, int | None]] = (0, 0)
    texts: ClassVar[bool] = False
    options: ClassVar[tuple[Option, ...]] = (
        Option("matrices", 10_000, "random cases per statement, spread over its kinds (costly statements take a tenth or less)"),
        Option("starts", 4, "climbs towards a violation per kind"),
        Option("steps", 250, "steps of each climb"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Try every statement on random cases, then climb."""
        from layerscope.studies.theory_parts.tables import tabulate
        from layerscope.studies.theory_parts.trying import try_all
        from layerscope.studies.theory_parts.verdict import verdict

        options = request.options
        if options["matrices"] < 1 or options["starts"] < 0 or options["steps"] < 0:
            raise LayerscopeError("matrices must be at least 1; starts and steps must not be negative.")
        trials = try_all(options["matrices"], options["starts"], options["steps"], request.seed, bar)
        table = tabulate(trials, request.seed)
        conventions = {
            "margin": "in nats (Theorems 5 and 6: of e^(−S_2)); negative where a case breaks the statement by more than 1e-9",
            "source": "arXiv 2502.02013, Section 3.4 and Appendix G",
            "arithmetic": "float64",
        }
        return Result(table, verdict(trials, table), conventions, [])

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Theorem 1 as a cloud of matrices; Theorems 5 and 6 with and without the trace."""
        from layerscope.studies.theory_parts.figure import draw

        return draw(table)


STUDY = Theory()
