"""The report as figures: one tall figure, or a PDF with a page for each."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from layerscope.report.contents import Report
from layerscope.report.drawing import COLORS, PLOT_MARKERS, escape_math, new_figure, style_axis
from layerscope.report.panels import draw_charts
from layerscope.report.sections.evaluation import draw_heat, heat_height, score_chart
from layerscope.report.sections.profile import curve_of, default_metrics, draw_profiles, profile_height
from layerscope.report.sources import Block

_WIDTH = 12.0
_COLUMNS = 4


@dataclass
class PaperFigure:
    """One figure of the report: how tall it is and how it is drawn."""

    height: float
    draw: Callable[[Any], Any]


def panels(report: Report) -> list[PaperFigure]:
    """Every figure that these runs give rise to, in the page's order."""
    out = [PaperFigure(_title_height(report), lambda part: _title(part, report))]
    if report.curves:
        names = default_metrics(report.curves)
        height = profile_height(len(names), min(_COLUMNS, len(names)))
        out.append(PaperFigure(height, lambda part: draw_profiles(part, report.curves, names, columns=min(_COLUMNS, len(names)))))
    for score in report.scores:
        if len(score.readouts) > 1:
            out.append(PaperFigure(3.4, lambda part, s=score: draw_charts(part, [score_chart(s)], together=True)))  # type: ignore[misc]
        out.append(PaperFigure(heat_height(score), lambda part, s=score: draw_heat(part, s, s.reference)))  # type: ignore[misc]
    for block in report.blocks:
        out.append(PaperFigure(_block_height(block), lambda part, b=block: _draw_block(part, b)))  # type: ignore[misc]
    for place in range(len(report.correlations)):
        out.append(PaperFigure(3.2, lambda part, i=place: draw_scatter(part, report, i)))  # type: ignore[misc]
    return out


def _block_height(block: Block) -> float:
    """Inches for the words, a row of charts, and each drawn figure."""
    return 0.6 + 0.2 * len(_block_lines(block)) + (3.0 if block.charts else 0.0) + sum(_figure_heights(block))


def _block_lines(block: Block) -> list[str]:
    return [line for text in block.words for line in textwrap.wrap(text, 150)]


def _figure_heights(block: Block) -> list[float]:
    from matplotlib.image import imread

    shapes = [imread(io.BytesIO(figure)).shape for figure in block.figures]
    return [min(9.0, 0.9 * _WIDTH * rows / columns) for rows, columns, *_ in shapes]


def _draw_block(part: Any, block: Block) -> None:
    """The words above, then the charts side by side, then the figures as they were drawn."""
    from matplotlib.image import imread

    lines = _block_lines(block)
    heights = [0.6 + 0.2 * len(lines), *([3.0] if block.charts else []), *_figure_heights(block)]
    places: Any = part.subfigures(len(heights), 1, height_ratios=heights, squeeze=False).ravel()
    top, *rest = places
    top.text(0.012, 1 - 0.25 / heights[0], escape_math(block.title), fontsize=11, weight="bold")
    for place, line in enumerate(lines):
        top.text(0.012, 1 - (0.5 + 0.2 * place) / heights[0], escape_math(line), fontsize=8.5)
    if block.charts:
        draw_charts(rest.pop(0), block.charts)
    for place, figure in zip(rest, block.figures, strict=True):
        axis = place.subplots()
        axis.imshow(imread(io.BytesIO(figure)))
        axis.set_axis_off()


def report_bytes(report: Report, kind: str) -> bytes:
    """The file's contents."""
    parts = panels(report)
    stream = io.BytesIO()
    if kind == "pdf":
        _pdf(parts, stream)
        return stream.getvalue()
    heights = [panel.height for panel in parts]
    figure = new_figure(_WIDTH, sum(heights))
    places: Any = figure.subfigures(len(parts), 1, height_ratios=heights, squeeze=False)
    for place, panel in zip(places.ravel(), parts, strict=True):
        panel.draw(place)
    figure.savefig(stream, format=kind)
    return stream.getvalue()


def _pdf(parts: list[PaperFigure], stream: io.BytesIO) -> None:
    figure = new_figure(_WIDTH, 1.0)  # says what to install where matplotlib is missing
    from matplotlib.backends.backend_pdf import PdfPages

    with PdfPages(stream) as pages:
        title, *rest = parts
        for n, panel in enumerate(rest or [title]):
            first = n == 0 and rest
            figure = new_figure(_WIDTH, panel.height + (title.height if first else 0))
            if first:
                halves: Any = figure.subfigures(2, 1, height_ratios=[title.height, panel.height])
                top, below = halves
                title.draw(top)
                panel.draw(below)
            else:
                panel.draw(figure)
            pages.savefig(figure)


def _lines(report: Report) -> list[str]:
    lines = textwrap.wrap(report.headline.lead, 100)
    small = [line for text in report.headline.points for line in textwrap.wrap(text, 150)]
    warned = [n for n in report.notices if n.level == "warn"]
    return [*lines, "", *small, *(line for n in warned for line in textwrap.wrap(f"Mind: {n.about}: {n.text}", 150))]


def _title_height(report: Report) -> float:
    return 0.35 + 0.22 * len(_lines(report))


def _title(part: Any, report: Report) -> None:
    lead = textwrap.wrap(report.headline.lead, 100)
    lines, height = _lines(report), _title_height(report)
    for place, line in enumerate(lines):
        is_lead = place < len(lead)
        part.text(
            0.012,
            1 - (0.3 + 0.22 * place) / height,
            escape_math(line),
            fontsize=12 if is_lead else 8.5,
            weight="bold" if is_lead else "normal",
        )


def draw_scatter(figure: Any, report: Report, place: int, most: int = 4) -> bool:
    """The metrics that go most with the mean score, a point per layer. Whether there is anything to draw."""
    pair = report.correlations[place]
    score, curves = report.scores[pair.scores], report.curves[pair.curves]
    own = pair.table[(pair.table["readout"] == score.reference) & (pair.table["task"] == pair.table["task"].iloc[0])]
    own = own.dropna(subset=["rho"]).sort_values("rho", key=abs, ascending=False)[:most]
    if own.empty:
        return False
    axes = np.atleast_1d(figure.subplots(1, len(own), sharey=True))
    target = 100 * score.mean(score.reference)
    look = report.styles[pair.curves]
    for axis, row in zip(axes, own.to_dict(orient="records"), strict=True):
        values = curve_of(curves, row["metric"], row["sink"]).drop_duplicates("layer").set_index("layer")["value"]
        x, y = values.align(target, join="inner")
        axis.plot(x, y, color=COLORS[look.color], linewidth=0.7, alpha=0.4)
        axis.scatter(x, y, c=np.arange(len(x)), cmap="cividis", s=18, marker=PLOT_MARKERS[look.marker])
        for mark in report.marks:
            if mark.model == score.model and mark.layer in x.index:
                axis.scatter([x[mark.layer]], [y[mark.layer]], s=70, facecolors="none", edgecolors="black", linewidths=1.1)
        chance = f" (chance: {row['chance']:.2f})" if np.isfinite(row["chance"]) else ""
        name = row["metric"].replace("_", " ") + (", sink dropped" if row["sink"] == "drop" else "")
        axis.set_title(f"ρ = {row['rho']:+.2f}{chance}", fontsize=8, loc="left")
        axis.set_xlabel(name, fontsize=8)
        style_axis(axis)
    axes[0].set_ylabel("score × 100", fontsize=8)
    figure.suptitle(escape_math(f"{curves.label}: metric against score, a point per layer (light: later)"), fontsize=9)
    return True
