"""Results in notebooks: the answer in words, charts as pictures, a table. Texts from outside are
escaped.

The fragments need no script, no style sheet and no other file. Without Altair a line says what to
install for the charts.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.choice import Choice, lines
from layerscope.core.charts import Figure
from layerscope.errors import printable
from layerscope.extras import MissingExtraError
from layerscope.maps import LayerMap
from layerscope.report.charts import picture, plot_charts
from layerscope.report.choosing import choice_picture
from layerscope.report.sources import Block, Chart, Curves, Scores
from layerscope.report.text import number

__all__ = ["block_html"]

MOST_CHARTS, MOST_LINES, MOST_ROWS = 4, 6, 12
_WORDS = 'style="max-width:60em;margin:.3em 0"'


def result_html(run: Any) -> str:
    """A run of any kind that a report can show."""
    from layerscope.report.contents import read
    from layerscope.report.sections.evaluation import scores_block
    from layerscope.report.sections.profile import curves_block

    source = read(run)
    if isinstance(source, Choice):
        return choice_html(source)
    if isinstance(source, Curves):
        return block_html(curves_block(source), most=40)
    if isinstance(source, Scores):
        return block_html(scores_block(source, every_readout=False), most=MOST_ROWS)
    return block_html(source)


def block_html(block: Block, most: int = 18) -> str:
    """Return words, then charts or the block's own picture, then its tables."""
    parts = [f"<b>{text(block.title)}</b>", *map(_paragraph, [*block.lead, *block.words])]
    parts.append(charts_html(block.charts[:MOST_CHARTS]))
    if block.grid is not None:
        parts.append(
            _drawn(
                partial(choice_picture, block.grid),
                "every layer under every readout: its score, and what it costs",
            )
        )
    if not block.charts:
        parts += [_png(figure) for figure in block.figures[:1]]
    shown = block.inline or ([] if block.charts or block.figures else list(block.tables)[:1])
    parts += [
        table_html(_told_once(block.tables[name]), name, most=most)
        for name in shown
        if name in block.tables
    ]
    return _page(parts, block.warnings)


def map_html(given: LayerMap) -> str:
    """A map: its page in a frame, which runs its own script and fetches nothing."""
    from layerscope.report.contents import gather
    from layerscope.report.page import page

    frame = 'width="100%" height="900" style="border:0" sandbox="allow-scripts" title="texts at every layer"'
    return f'<iframe {frame} srcdoc="{text(page(gather([given])))}"></iframe>'


def choice_html(choice: Choice) -> str:
    """A choice: the sentence, and what it rests on."""
    facts = pd.DataFrame(lines(choice), columns=["", "what"])
    return block_html(
        Block("choice", choice.headline(), choice.model, [], tables={"": facts}, inline=[""]),
        most=40,
    )


# --- pieces
#   ---------------------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Escaped for HTML."""
    return html.escape(printable(str(value)), quote=True)


def _paragraph(sentence: str) -> str:
    return f"<p {_WORDS}>{text(sentence)}</p>"


def _page(parts: Iterable[str], warnings: Iterable[Any] = ()) -> str:
    """One fragment; notes come last."""
    notes = [f"<p {_WORDS}><i>{text(warning)}</i></p>" for warning in warnings]
    head, *rest = parts
    return (
        f"<div><p {_WORDS}>{head}</p>"
        + "".join(part for part in [*rest, *notes] if part)
        + "</div>"
    )


def table_html(table: pd.DataFrame, caption: str = "", most: int = MOST_ROWS) -> str:
    """The first rows of a table; how many were left out is said."""
    head = "".join(f"<th style='text-align:left'>{text(name)}</th>" for name in table.columns)
    rows = []
    for row in table.head(most).itertuples(index=False):
        rows.append(
            "<tr>"
            + "".join(
                f"<td style='text-align:left;vertical-align:top'>{_cell(v)}</td>" for v in row
            )
            + "</tr>"
        )
    more = f"<p {_WORDS}>{len(table) - most} more rows</p>" if len(table) > most else ""
    title = f"<p {_WORDS}>{text(caption)}</p>" if caption else ""
    return f"{title}<table><tr>{head}</tr>{''.join(rows)}</table>{more}"


def _told_once(table: pd.DataFrame) -> pd.DataFrame:
    """The first column empty where it says the same as the row above."""
    if not len(table.columns) or table[table.columns[0]].dtype.kind in "fi":
        return table
    first = table[table.columns[0]].astype(str)
    return table.assign(**{str(table.columns[0]): first.where(first != first.shift(), "")})


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return number(float(value))
    return text(value)


def _png(figure: bytes, says: str = "figure") -> str:
    encoded = base64.b64encode(figure).decode()
    return f'<img style="max-width:100%" alt="{text(says)}" src="data:image/png;base64,{encoded}">'


def charts_html(charts: Sequence[Chart]) -> str:
    """Return charts side by side, those with at least one value."""
    kept = [replace(chart, lines=chart.lines[:MOST_LINES]) for chart in charts]
    kept = [
        chart
        for chart in kept
        if any(np.isfinite(np.asarray(line.values, float)).any() for line in chart.lines)
    ]
    if not kept:
        return ""

    return _drawn(
        partial(plot_charts, kept, "", columns=len(kept), alike=False),
        "; ".join(
            f"{chart.title} by layer: {', '.join(line.name for line in chart.lines)}"
            for chart in kept
        ),
    )


def _drawn(draw: Callable[[], Figure], says: str) -> str:
    """Return a chart as an image, or how to get it where Altair is missing."""
    try:
        return _png(picture(draw()), says)
    except MissingExtraError as error:
        return _paragraph(str(error))
