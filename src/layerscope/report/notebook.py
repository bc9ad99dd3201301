"""Results in notebooks: the answer in words, charts as pictures, a table.

The fragments need no script, no style sheet and no other file. Texts from outside are escaped.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.choice import Choice, lines
from layerscope.core.charts import Chart, Figure
from layerscope.errors import printable
from layerscope.extras import MissingExtraError
from layerscope.maps import LayerMap
from layerscope.report.charts import picture, plot_charts
from layerscope.report.contents import gather, read
from layerscope.report.page import page
from layerscope.report.section import Section
from layerscope.report.words import number

__all__ = ["choice_html", "map_html", "result_html"]

_MOST_CHARTS = 4
_MOST_LINES = 6
_MOST_ROWS = 40
_WORDS = 'style="max-width:60em;margin:.3em 0"'
_CELL = 'style="text-align:left;vertical-align:top"'


def result_html(run: Any) -> str:
    """Return a run of any kind as HTML: its sentences, charts or own picture, tables and notes."""
    section = read(run)
    if isinstance(section, Choice):
        return choice_html(section)
    pieces = [f"<p {_WORDS}><b>{_escape(section.title)}</b></p>"]
    pieces += [_paragraph(sentence) for sentence in [*section.lead, *section.words]]
    pieces.append(charts_html(section.charts))
    pieces += [_image(drawing.draw, drawing.title) for drawing in section.drawings]
    if not section.charts:
        pieces += [_png(figure, "figure") for figure in section.figures[:1]]
    names = section.inline
    if not names and not section.charts and not section.figures:
        names = list(section.tables)[:1]
    pieces += [table_html(section.tables[name], name) for name in names if name in section.tables]
    pieces += [f"<p {_WORDS}><i>{_escape(text)}</i></p>" for text in section.warnings]
    return f"<div>{''.join(pieces)}</div>"


def map_html(layer_map: LayerMap) -> str:
    """Return a map as its page in a frame, which runs its own script and fetches nothing."""
    frame = 'width="100%" height="900" style="border:0" sandbox="allow-scripts"'
    return f'<iframe {frame} title="map" srcdoc="{_escape(page(gather([layer_map])))}"></iframe>'


def choice_html(choice: Choice) -> str:
    """Return a choice: the sentence, and what it rests on."""
    facts = pd.DataFrame(lines(choice), columns=["", "what"])
    return result_html(Section("choice", choice.headline(), choice.model, [], tables={"": facts}))


def table_html(table: pd.DataFrame, caption: str = "", most: int = _MOST_ROWS) -> str:
    """Return the first rows of a table, and how many were left out."""
    head = "".join(f"<th {_CELL}>{_escape(name)}</th>" for name in table.columns)
    rows = [
        "<tr>" + "".join(f"<td {_CELL}>{_cell(value)}</td>" for value in row) + "</tr>"
        for row in table.head(most).itertuples(index=False)
    ]
    title = _paragraph(caption) if caption else ""
    remainder = _paragraph(f"{len(table) - most} more rows") if len(table) > most else ""
    return f"{title}<table><tr>{head}</tr>{''.join(rows)}</table>{remainder}"


def charts_html(charts: list[Chart]) -> str:
    """Return charts side by side, those with at least one value."""
    shown = []
    for chart in charts[:_MOST_CHARTS]:
        values = [value for line in chart.lines for value in line.values]
        if np.isfinite(np.asarray(values, float)).any():
            shown.append(replace(chart, lines=chart.lines[:_MOST_LINES]))
    if not shown:
        return ""
    names = [f"{chart.title}: {', '.join(line.name for line in chart.lines)}" for chart in shown]
    return _image(partial(plot_charts, shown, "", alike=False), "; ".join(names))


def _image(draw: Callable[[], Figure], says: str) -> str:
    """Return a chart as an image, or how to get it where Altair is missing."""
    try:
        return _png(picture(draw()), says)
    except MissingExtraError as error:
        return _paragraph(str(error))


def _png(figure: bytes, says: str) -> str:
    source = f"data:image/png;base64,{base64.b64encode(figure).decode()}"
    return f'<img style="max-width:100%" alt="{_escape(says)}" src="{source}">'


def _paragraph(sentence: str) -> str:
    return f"<p {_WORDS}>{_escape(sentence)}</p>"


def _cell(value: Any) -> str:
    is_float = isinstance(value, float | np.floating)
    return number(float(value)) if is_float else _escape(value)


def _escape(value: Any) -> str:
    return html.escape(printable(str(value)), quote=True)
