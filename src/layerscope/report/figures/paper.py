"""The report as figures: one tall figure, or a PDF with a page for each."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from layerscope.report.contents.gather import Report
from layerscope.report.figures.curves import draw_profiles, main_metrics, profile_height
from layerscope.report.figures.drawing import new_figure, tame
from layerscope.report.figures.scores import draw_heat, draw_readouts, draw_scatter, heat_height

_WIDTH = 12.0
_COLUMNS = 4


@dataclass
class Panel:
    """One figure of the report: how tall it is and how it is drawn."""

    height: float
    draw: Callable[[Any], Any]


def panels(report: Report) -> list[Panel]:
    """Every figure that these runs give rise to, in the page's order."""
    out = [Panel(_title_height(report), lambda part: _title(part, report))]
    if report.curves:
        names = main_metrics(report.curves)
        height = profile_height(len(names), min(_COLUMNS, len(names)))
        out.append(Panel(height, lambda part: draw_profiles(part, report.curves, names, columns=min(_COLUMNS, len(names)))))
    for score in report.scores:
        if len(score.readouts) > 1:
            out.append(Panel(3.4, lambda part, s=score: draw_readouts(part, s)))  # type: ignore[misc]
        out.append(Panel(heat_height(score), lambda part, s=score: draw_heat(part, s, s.reference)))  # type: ignore[misc]
    for place in range(len(report.correlations)):
        out.append(Panel(3.2, lambda part, i=place: draw_scatter(part, report, i)))  # type: ignore[misc]
    return out


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


def _pdf(parts: list[Panel], stream: io.BytesIO) -> None:
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
    import textwrap

    lines = textwrap.wrap(report.headline.lead, 100)
    small = [line for text in report.headline.points for line in textwrap.wrap(text, 150)]
    warned = [n for n in report.notices if n.level == "warn"]
    return [*lines, "", *small, *(line for n in warned for line in textwrap.wrap(f"Mind: {n.about}: {n.text}", 150))]


def _title_height(report: Report) -> float:
    return 0.35 + 0.22 * len(_lines(report))


def _title(part: Any, report: Report) -> None:
    import textwrap

    lead = textwrap.wrap(report.headline.lead, 100)
    lines, height = _lines(report), _title_height(report)
    for place, line in enumerate(lines):
        is_lead = place < len(lead)
        part.text(
            0.012,
            1 - (0.3 + 0.22 * place) / height,
            tame(line),
            fontsize=12 if is_lead else 8.5,
            weight="bold" if is_lead else "normal",
        )
