"""The report as figures: one tall figure, or a PDF with a page for each."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from layerscope.core.charts import Figure
from layerscope.metrics import metric_title
from layerscope.report.choosing import choice_height, draw_choice
from layerscope.report.contents import Report
from layerscope.report.drawing import COLORS, PLOT_MARKERS, escape_math, new_figure, style_axis
from layerscope.report.panels import draw_charts
from layerscope.report.sections.evaluation import draw_heat, heat_height, score_chart
from layerscope.report.sections.profile import (
    curve_of,
    default_metrics,
    draw_profiles,
    profile_height,
)
from layerscope.report.sources import Block

_WIDTH = 12.0
_COLUMNS = 4


Part = tuple[float, Callable[[Any], Any]]
"""One figure of the report: how tall it is, and what draws it."""


def figures(report: Report) -> list[Part]:
    """Every figure that these runs give rise to, in the page's order."""
    out: list[Part] = [_title(report)]
    if report.curves:
        names = default_metrics(report.curves)
        height = profile_height(len(names), min(_COLUMNS, len(names)))
        out.append(
            (
                height,
                partial(
                    draw_profiles,
                    curves=report.curves,
                    names=names,
                    columns=min(_COLUMNS, len(names)),
                ),
            )
        )
    for score in report.scores:
        if len(score.readouts) > 1:
            out.append((3.4, partial(draw_charts, charts=[score_chart(score)], together=True)))
        out.append((heat_height(score), partial(draw_heat, score=score, readout=score.reference)))
    out += [_block(block) for block in report.blocks]
    return out + [
        (3.2, partial(draw_scatter, report=report, place=place))
        for place in range(len(report.correlations))
    ]


def _block(block: Block) -> Part:
    """The words above, then the charts side by side, then the figures as they were drawn."""
    from matplotlib.image import imread

    images = [imread(io.BytesIO(figure)) for figure in block.figures]
    lines = [line for text in block.words for line in textwrap.wrap(text, 150)]
    heights = [0.6 + 0.2 * len(lines), *([3.0] if block.charts else [])]
    heights += [choice_height(block.grid)] if block.grid is not None else []
    heights += [min(9.0, 0.9 * _WIDTH * image.shape[0] / image.shape[1]) for image in images]

    def draw(part: Any) -> None:
        top, *rest = part.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
        top.text(0.012, 1 - 0.25 / heights[0], escape_math(block.title), fontsize=11, weight="bold")
        for place, line in enumerate(lines):
            top.text(0.012, 1 - (0.5 + 0.2 * place) / heights[0], escape_math(line), fontsize=8.5)
        if block.charts:
            draw_charts(rest.pop(0), block.charts, columns=len(block.charts))
        if block.grid is not None:
            draw_choice(rest.pop(0), block.grid)
        for place, image in zip(rest, images, strict=True):
            axis = place.subplots()
            axis.imshow(image)
            axis.set_axis_off()

    return sum(heights), draw


def report_bytes(report: Report, kind: str) -> bytes:
    """The file's contents: one tall figure, or of a PDF a page per figure, the title above the
    first."""
    new_figure(1, 1)  # says what to install where matplotlib is missing
    from matplotlib.backends.backend_pdf import PdfPages

    stream = io.BytesIO()
    title, *rest = figures(report)
    if kind != "pdf":
        _together([title, *rest]).savefig(stream, format=kind)
        return stream.getvalue()
    with PdfPages(stream) as pages:
        for some in [[title, *rest[:1]], *([part] for part in rest[1:])]:
            pages.savefig(_together(some))
    return stream.getvalue()


def _together(parts: Sequence[Part]) -> Figure:
    """Figures one below the other."""
    heights = [height for height, _ in parts]
    figure = new_figure(_WIDTH, sum(heights))
    places: Any = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)
    for place, (_, draw) in zip(places.ravel(), parts, strict=True):
        draw(place)
    return figure


def _title(report: Report) -> Part:
    """The headline, what follows from it, and what may mislead."""
    lead = textwrap.wrap(report.headline.lead, 100)
    warned = [f"Mind: {n.about}: {n.text}" for n in report.notices if n.level == "warn"]
    lines = [
        *lead,
        "",
        *(line for text in [*report.headline.points, *warned] for line in textwrap.wrap(text, 150)),
    ]
    height = 0.35 + 0.22 * len(lines)

    def draw(part: Any) -> None:
        for place, line in enumerate(lines):
            look: dict[str, Any] = (
                {"fontsize": 12, "weight": "bold"} if place < len(lead) else {"fontsize": 8.5}
            )
            part.text(0.012, 1 - (0.3 + 0.22 * place) / height, escape_math(line), **look)

    return height, draw


def draw_scatter(figure: Any, report: Report, place: int, most: int = 4) -> None:
    """The metrics that go most with the mean score, a point per layer."""
    pair = report.correlations[place]
    score, curves = report.scores[pair.scores], report.curves[pair.curves]
    own = pair.table[
        (pair.table["readout"] == score.reference)
        & (pair.table["task"] == pair.table["task"].iloc[0])
    ]
    own = own.dropna(subset=["rho"]).sort_values("rho", key=abs, ascending=False)[:most]
    if own.empty:
        return
    axes = np.atleast_1d(figure.subplots(1, len(own), sharey=True))
    target = 100 * score.mean(score.reference)
    look = report.styles[pair.curves]
    for axis, row in zip(axes, own.to_dict(orient="records"), strict=True):
        values = (
            curve_of(curves, row["metric"], row["sink"])
            .drop_duplicates("layer")
            .set_index("layer")["value"]
        )
        x, y = values.align(target, join="inner")
        axis.plot(x, y, color=COLORS[look.color], linewidth=0.7, alpha=0.4)
        axis.scatter(
            x, y, c=np.arange(len(x)), cmap="cividis", s=18, marker=PLOT_MARKERS[look.marker]
        )
        for mark in report.marks:
            if mark.model == score.model and mark.layer in x.index:
                axis.scatter(
                    [x[mark.layer]],
                    [y[mark.layer]],
                    s=70,
                    facecolors="none",
                    edgecolors="black",
                    linewidths=1.1,
                )
        chance = f" (chance: {row['chance']:.2f})" if np.isfinite(row["chance"]) else ""
        axis.set_title(f"ρ = {row['rho']:+.2f}{chance}", fontsize=8, loc="left")
        style_axis(axis, x=metric_title(row["metric"], row["sink"]))
    axes[0].set_ylabel("score × 100", fontsize=8)
    figure.suptitle(
        escape_math(f"{curves.label}: metric against score, a point per layer (light: later)"),
        fontsize=9,
    )
