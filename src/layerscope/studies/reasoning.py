"""Prompt entropy along the sequence: does a model that was taught to reason keep more of what it has read?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pandas as pd

from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.metrics.rows import ROW_PREPARATIONS
from layerscope.progress import Progress
from layerscope.studies.base import Option, Request, Result, Study
from layerscope.studies.shared.specs import read_specs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CENTRES = ("prompt", "prefix")


class Reasoning(Study):
    """Entropy of every prefix of every prompt at every layer, of one model or several."""

    name: ClassVar[str] = "reasoning"
    title: ClassVar[str] = "Prompt entropy along the sequence"
    paper: ClassVar[str] = "Fig. 5"
    models: ClassVar[tuple[int, int | None]] = (1, None)
    texts: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        Option("stride", 1, "every so many tokens; the whole prompt is always there"),
        Option("rows", "centered-unit", f"what is done to the tokens' states: {', '.join(ROW_PREPARATIONS)}"),
        Option("center", "prompt", "whose mean is subtracted: that of the whole prompt, or of the prefix itself (dearer)"),
        Option("alpha", 1.0, "order of the entropy; 1 and 2 are updated from prefix to prefix, others are computed anew"),
        Option("groups", 3, "groups of layers in the figure and the verdict: 3 are the first, middle and last third"),
    )

    def run(self, request: Request, bar: Progress) -> Result:
        """Measure each model, one at a time; finished prompts are found again."""
        from layerscope.studies.reasoning_parts.measure import measure
        from layerscope.studies.reasoning_parts.tables import tabulate
        from layerscope.studies.reasoning_parts.verdict import verdict

        _check(request.options)
        measured = [measure(request, spec, bar) for spec in read_specs(request.models)]
        options = request.options
        conventions = {
            "models": {m.label: m.identity for m in measured},
            "rows": options["rows"],
            "center": options["center"] if options["rows"].startswith("centered") else None,
            "alpha": options["alpha"],
            "entropy": "in nats, of the first n tokens, not divided by the log of n",
            "sink": "the token with the largest norm in the prompt, found per layer on states without the final norm",
        }
        notes = [note for m in measured for note in m.warnings]
        if len({m.tokenizer for m in measured}) > 1:
            notes.append("the models cut texts into different tokens: position n is not the same place of a text in all of them.")
        return Result(tabulate(measured, request.seed), verdict(measured, options["groups"], request.seed), conventions, notes)

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Entropy against position, a colour per model, a column per group of layers."""
        from layerscope.studies.reasoning_parts.figure import draw

        return draw(table, manifest)


def _check(options: dict[str, Any]) -> None:
    if options["rows"] not in ROW_PREPARATIONS:
        raise UnknownNameError("rows", options["rows"], ROW_PREPARATIONS)
    if options["center"] not in CENTRES:
        raise UnknownNameError("center", options["center"], CENTRES)
    if options["stride"] < 1 or options["groups"] < 1:
        raise LayerscopeError("stride and groups are whole numbers of 1 or more.")
    if not options["alpha"] >= 0:
        raise LayerscopeError(f"alpha must be a number of 0 or more, not {options['alpha']}.")


STUDY = Reasoning()
