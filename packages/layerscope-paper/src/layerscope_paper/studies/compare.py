"""Study `compare`: differences of several models from a first one, layer by layer.

Profiles every model on the same texts and takes differences from the first, prompt by prompt, at
the same depth: on the straight line between two layers where the numbers of blocks differ.

Table: `value` rows (each model's profile), `difference` rows (model minus base) and `valley` rows
(the deepest dip). Figure: the curves above, the differences below them, then the curves of the
other metrics. Verdict: each model against the base over all layers, and where; then each one's
valley.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from layerscope.metrics import metrics
from layerscope.progress import Progress
from layerscope_paper.drawing import escape_math
from layerscope_paper.studies.base import METRICS, Result, Study
from layerscope_paper.studies.shared.figures import (
    Figure,
    draw_panel,
    draw_panels,
    grid,
    legend_below,
    measured_panels,
    model_colors,
    same_scale,
    with_heading,
)
from layerscope_paper.studies.shared.models import Request, canonical, read_specs
from layerscope_paper.studies.shared.numbers import (
    DIFFERS,
    SINKS,
    THAN,
    change_without_sink,
    in_short,
    join_words,
    means_of,
    sentence,
    where_clear,
)
from layerscope_paper.studies.shared.profiles import (
    Differences,
    Profiles,
    Valleys,
    invariance,
    profile_rows,
    token_counts,
)

_PANELS = [
    ("prompt_entropy", "keep", "Prompt entropy"),
    ("prompt_entropy", "drop", "… without the sink token"),
    ("curvature", "keep", "Curvature"),
]


class Compare(Study):
    """Differences of the layers of several models from those of the first."""

    name = "compare"
    title = "Models against a base, layer by layer"
    paper = "Fig. 2, 10, 13"
    models = (2, None)
    options = (METRICS,)

    def run(self, request: Request, bar: Progress) -> Result:
        """Profile each model, then take differences from the first over the same prompts."""
        request = canonical(request)
        specs = read_specs(request.models)
        runs = Profiles.of(request, specs, bar, "prompt_entropy", "curvature")
        base = specs[0].label
        compared = [runs.minus(base, spec.label) for spec in specs[1:]]
        curves = [
            profile_rows(run, label, kind="value", against=None) for label, run in runs.items()
        ]
        depths = pd.DataFrame(
            [row for valley in runs.valleys for row in valley.rows(kind="valley", against=None)]
        )
        table = pd.concat(
            [*curves, *(pair.table(kind="difference", against=base) for pair in compared), depths],
            ignore_index=True,
        )
        base_tokens = token_counts(runs[base])
        same_tokens = {label: token_counts(run).equals(base_tokens) for label, run in runs.items()}
        differing = [label for label, same in same_tokens.items() if not same]
        warnings = runs.warnings
        if differing:
            warnings.insert(
                0,
                f"{', '.join(differing)} cut{'s' * (len(differing) == 1)} the texts into other "
                f"tokens than {base} does: dividing by the log of the length corrects for the "
                "number of tokens, but nothing corrects for the rest.",
            )
        conventions = {
            **runs.conventions,
            "base": base,
            "same_tokens": same_tokens,
            "differences": "model minus base, of each prompt, then their mean; layers by depth, on "
            "the "
            "straight line between two "
            "layers where the numbers of blocks differ",
        }
        views = [
            line
            for spec in specs[1:]
            for line in invariance(runs[base], runs[spec.label], (base, spec.label))
        ]
        return Result(
            table,
            [*verdict(compared, runs.valleys, bool(differing)), *views],
            conventions,
            warnings,
        )

    def draw(self, table: pd.DataFrame, manifest: dict[str, Any]) -> Figure:
        """Draw curves above, differences from the base below; then the curves of metrics that have
        no value per prompt."""
        values = table[table["kind"] == "value"]
        differences = table[table["kind"] == "difference"]
        base = manifest["conventions"]["base"]
        colors = model_colors(values)
        others = [
            panel
            for panel in measured_panels(values)
            if panel[0] not in {metric for metric, _, _ in _PANELS}
        ]
        rows_below = -(-len(others) // len(_PANELS))
        figure, axes = grid(2 + rows_below, len(_PANELS), 10.8, 5.8 + 2.7 * rows_below, sharex=True)
        draw_panels(axes[2:].ravel(), values, others, "model", colors)
        for above, axis, panel in zip(*axes[:2], _PANELS, strict=True):
            draw_panel(above, values, panel, "model", colors)
            above.set_xlabel("")
            axis.axhline(0, color="#888888", linewidth=0.8)
            draw_panel(axis, differences, (*panel[:2], ""), "model", colors, alpha=0.25)
            axis.set_ylabel(f"difference ({metrics()[panel[0]].info.unit})", fontsize=8)
        for row in axes[:2, :2]:
            same_scale(row)
        axes[1, 0].set_title(
            escape_math(f"minus {base}, paired over prompts"), fontsize=9, loc="left"
        )
        legend_below(
            figure,
            {label + " (base)" * (label == base): color for label, color in colors.items()},
            min(4, len(colors)),
        )
        return with_heading(figure, manifest)


def verdict(compared: list[Differences], valleys: list[Valleys], tokens_differ: bool) -> list[str]:
    """Describe each model against the base, then each model's valley."""
    out: list[str] = []
    short: list[str] = []
    for pair in compared:
        if all(not np.nan_to_num(values).any() for values in pair.values.values()):
            out.append(
                f"{pair.other} has the same numbers as {pair.base} at every layer and for every "
                "prompt."
            )
            short.append(f"{pair.other} equals {pair.base}")
            continue
        with_sink, without_sink = pair.overall("prompt_entropy")
        word = DIFFERS[with_sink.sign]
        short.append(
            f"prompt entropy of {pair.other} is {word}{THAN[with_sink.sign]} "
            f"{pair.base}{change_without_sink(with_sink, without_sink, DIFFERS)}"
        )
        out.append(
            f"{pair.other} against {pair.base}: prompt entropy is {word} over all layers, "
            f"{with_sink} nats; without the sink token {without_sink}."
        )
        for sink, words in zip(SINKS, ("", "without the sink token: "), strict=True):
            means = means_of(pair.values["prompt_entropy", "raw", sink].T, pair.seed)
            out.append(f"  {sentence(words + where_clear(means, 'higher', 'lower'))}")
        if tokens_differ:
            with_sink, without_sink = pair.overall("prompt_entropy", "logN")
            out.append(
                f"  Divided by the log of the number of tokens: {with_sink}, without the sink "
                f"token {without_sink}."
            )
        with_sink, without_sink = pair.overall("curvature")
        out.append(
            f"  Curvature differs by {with_sink} radians, without the sink token {without_sink}."
        )
    return [in_short(join_words(short)), *out, *(valley.sentence() for valley in valleys)]


STUDY = Compare()
