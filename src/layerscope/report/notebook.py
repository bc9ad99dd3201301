"""What a notebook shows of a result: its answer in words, curves as inline SVG, and a table. Everything from outside is escaped.

The fragments need no script and no style sheet, and take their colors from the page, so that they are readable in dark notebooks.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from layerscope.core.readout import DEFAULT_READOUT
from layerscope.metrics import get_metric, metrics
from layerscope.report.drawing import ON_LIGHT
from layerscope.report.sources import Block, Chart, Curves, Line, Scores
from layerscope.report.text import number
from layerscope.selection.choice import Choice, headline, lines

if TYPE_CHECKING:
    from layerscope.correlation.study import Correlations

MOST_CHARTS, MOST_LINES, MOST_ROWS = 4, 6, 12
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 300, 170, 44, 22, 24
_WORDS = 'style="max-width:60em;margin:.3em 0"'


def result_html(run: Any) -> str:
    """A run of any kind that a report can show."""
    from layerscope.report.contents import read

    source = read(run)
    if isinstance(source, Choice):
        return choice_html(source)
    if isinstance(source, Curves):
        return curves_html(source)
    return scores_html(source) if isinstance(source, Scores) else block_html(source, _candidates(run))


def block_html(block: Block, more: Sequence[Chart] = ()) -> str:
    """Words first, then charts or the block's own figure, then its tables."""
    parts = [f"<b>{text(block.title)}</b>", *map(_paragraph, [*block.lead, *block.words])]
    parts.append(charts_html([*block.charts[:MOST_CHARTS], *more]))
    if not block.charts:
        parts += [_png(figure) for figure in block.figures[:1]]
    shown = block.inline or ([] if block.charts or block.figures else list(block.tables)[:1])
    parts += [table_html(_told_once(block.tables[name]), name, most=18) for name in shown if name in block.tables]
    return _page(parts, block.warnings)


def _candidates(run: Any) -> list[Chart]:
    """Of an improvement: the judged scores of the chosen readout beside today's, by layer."""
    choice, table = getattr(run, "choice", None), getattr(run, "table", None)
    if choice is None or table is None or not {"readout", "layer", "score"} <= set(table.columns):
        return []
    drawn = []
    for name in dict.fromkeys([str(choice.readout), DEFAULT_READOUT]):
        rows = table[table["readout"] == name].sort_values("layer")
        low, high = (list(rows[column]) if column in rows else None for column in ("ci_low", "ci_high"))
        note = (choice.layer, f"layer {choice.layer}") if name == choice.readout else None
        drawn.append(Line(name, list(rows["layer"]), list(rows["score"]), low, high, note=note))
    return [Chart("score by layer", [line for line in drawn if len(line.layers)])]


def curves_html(curves: Curves) -> str:
    """A profile: where the valley is, the main metrics as curves, the extremes of all of them."""
    from layerscope.report.sections.profile import curve_of, default_metrics, describe_prompts

    parts = [f"<b>{text(curves.model)}</b>, final_norm <b>{text(curves.final_norm)}</b>"]
    if curves.run is not None:
        m = curves.run.manifest
        parts = [
            f"<b>{text(curves.model)}</b> on {text(m['corpus']['name'])}: {text(describe_prompts(m))}, "
            f"final_norm <b>{text(curves.final_norm)}</b>, {m['conventions']['views']} views"
        ]
    valley = curves.valley
    if valley is not None:
        parts.append(_paragraph(valley.sentence()))
    charts = []
    for name in default_metrics([curves])[:MOST_CHARTS]:
        drawn = [
            _line("sink kept" if sink == "keep" else "sink dropped", rows)
            for sink in ("keep", "drop")
            if len(rows := curve_of(curves, name, sink))
        ]
        charts.append(Chart(_title(name), drawn, metrics()[name].info.unit if name in metrics() else ""))
    parts.append(charts_html(charts))
    told = []
    for name in curves.table["metric"].unique():
        curve = curve_of(curves, name, "keep").dropna(subset=["value"])
        if curve.empty:
            told.append([_title(name), "undefined", "", "", ""])
            continue
        low, high = curve.iloc[int(curve["value"].argmin())], curve.iloc[int(curve["value"].argmax())]
        ends = [number(float(curve["value"].iloc[place])) for place in (0, -1)]
        told.append([_title(name), *ends, *(f"{number(float(row['value']))} @ {int(row['layer'])}" for row in (low, high))])
    parts.append(table_html(pd.DataFrame(told, columns=["metric", "first layer", "last", "lowest @", "highest @"]), most=40))
    return _page(parts, curves.warnings)


def scores_html(scores: Scores) -> str:
    """An evaluation: mean score by layer of each readout, and each task's best."""
    drawn = []
    for readout in sorted(scores.readouts, key=lambda name: name != scores.reference)[:MOST_LINES]:
        mean = 100 * scores.mean(readout)
        drawn.append(Line(readout, [int(layer) for layer in mean.index], list(mean), blocks=scores.n_blocks))
    title = scores.tasks[0] if len(scores.tasks) == 1 else f"mean over {scores.mean_says}"
    parts = [f"<b>{text(scores.model)}</b>: {len(scores.tasks)} tasks × {len(scores.readouts)} readouts, every layer"]
    parts.append(charts_html([Chart(title, drawn, "points")]))
    rows = []
    for task, of_task in scores.table.dropna(subset=["score"]).groupby("task", sort=False):
        top = of_task.iloc[int(of_task["score"].argmax())]
        last = of_task[of_task["layer"] == of_task["layer"].max()].set_index("readout")["score"]
        ends = [100 * float(last.get(name, math.nan)) for name in (top["readout"], DEFAULT_READOUT)]
        rows.append([task, 100 * top["score"], int(top["layer"]), top["readout"], *ends])
    best = pd.DataFrame(rows, columns=["task", "best", "layer", "readout", "last layer", "today"])
    parts.append(
        table_html(best, "the best layer and readout of each task; the last layer under that readout, and as read today")
    )
    return _page(parts, scores.warnings)


def choice_html(choice: Choice) -> str:
    """A choice: the sentence, what it rests on, and its scores by layer where it was chosen with labels."""
    table = getattr(choice, "table", None)
    charts = []
    if table is not None and len(table) and {"readout", "layer", "score"} <= set(table.columns):
        rows = table[table["readout"] == choice.readout].sort_values("layer")
        note = (choice.layer, f"layer {choice.layer}")
        charts = [Chart("score by layer", [Line(str(choice.readout), list(rows["layer"]), list(rows["score"]), note=note)])]
    facts = pd.DataFrame(lines(choice), columns=["", "what"])
    return _page([f"<b>{text(headline(choice))}</b>", charts_html(charts), table_html(facts, most=40)])


def correlations_html(found: Correlations) -> str:
    """Correlations: every metric with its interval, and what unrelated curves as smooth reach."""
    parts = [f"<b>{text(found.facts.get('model', 'Metrics'))}</b>: metrics against scores, one point per layer"]
    for measure, rows in found.layers.groupby("measure", sort=False):
        parts.append(_intervals(str(measure), rows))
    table = found.layers[["metric", "measure", "value", "ci_low", "ci_high", "null_95", "p_adjusted", "layers", "tasks"]]
    named = table.rename(columns={"ci_low": "95 % from", "ci_high": "to", "null_95": "chance, 95 %", "p_adjusted": "Holm p"})
    parts.append(table_html(named, "an interval that passes the chance mark is not enough: judge by Holm p"))
    return _page(parts, found.facts.get("notes") or ())


def comparison_html(labels: Sequence[str], charts: Sequence[Chart], wide: pd.DataFrame, notes: Sequence[str]) -> str:
    """A comparison: a chart per series with a line per run."""
    parts = [f"<b>{text(' · '.join(labels))}</b>", charts_html(charts[:MOST_CHARTS])]
    flat = wide.set_axis([" · ".join(map(str, c)) if isinstance(c, tuple) else str(c) for c in wide.columns], axis=1)
    parts.append(table_html(flat.iloc[:, : 2 * MOST_LINES].reset_index()))
    return _page(parts, notes)


def _intervals(measure: str, rows: pd.DataFrame) -> str:
    """One line per metric: its value with the interval, and a mark where unrelated smooth curves reach in 95 % of cases."""
    height, left = 22 * len(rows) + 34, 130
    low = min(-1.0 if (rows["value"] < 0).any() else 0.0, 0.0)
    place = _scale(low, 1.0, left, 330)
    out = [_label(0, 14, measure, weight=600)]
    for k, row in enumerate(rows.itertuples()):
        y = 32 + 22 * k
        value, start, end = _number(row.value), _number(row.ci_low), _number(row.ci_high)
        out.append(_label(0, y + 4, str(row.metric)))
        if math.isfinite(start) and math.isfinite(end):
            out.append(
                f'<path d="M{place(start):.1f} {y}H{place(end):.1f}" stroke="{ON_LIGHT[0]}" stroke-width="3" opacity=".45"/>'
            )
        out.append(f'<circle cx="{place(value):.1f}" cy="{y}" r="4" fill="{ON_LIGHT[0]}"/>')
        chance = math.copysign(_number(row.null_95), value)
        if math.isfinite(chance):
            out.append(f'<path d="M{place(chance):.1f} {y - 7}V{y + 7}" stroke="{ON_LIGHT[1]}" stroke-width="2"/>')
    out.append(_label(left, height - 2, f"{low:g}"))
    out.append(_label(330, height - 2, "1", "end"))
    return _svg(340, height, out, f"{measure} of each metric with its interval; bars mark what chance reaches")


# --- pieces ---------------------------------------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Escaped for HTML."""
    return html.escape(str(value), quote=True)


def _paragraph(sentence: str) -> str:
    return f"<p {_WORDS}>{text(sentence)}</p>"


def _page(parts: Iterable[str], warnings: Iterable[Any] = ()) -> str:
    """One fragment; notes come last."""
    notes = [f"<p {_WORDS}><i>{text(warning)}</i></p>" for warning in warnings]
    head, *rest = parts
    return f"<div><p {_WORDS}>{head}</p>" + "".join(part for part in [*rest, *notes] if part) + "</div>"


def table_html(table: pd.DataFrame, caption: str = "", most: int = MOST_ROWS) -> str:
    """The first rows of a table; how many were left out is said."""
    head = "".join(f"<th style='text-align:left'>{text(name)}</th>" for name in table.columns)
    rows = []
    for row in table.head(most).itertuples(index=False):
        rows.append("<tr>" + "".join(f"<td style='text-align:left;vertical-align:top'>{_cell(v)}</td>" for v in row) + "</tr>")
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


def _png(figure: bytes) -> str:
    return f'<img style="max-width:100%" alt="figure" src="data:image/png;base64,{base64.b64encode(figure).decode()}">'


def charts_html(charts: Sequence[Chart]) -> str:
    """Charts side by side."""
    return "".join(chart_svg(chart) for chart in charts if chart.lines)


def chart_svg(chart: Chart) -> str:
    """Curves over layers with their bands, as one SVG."""
    drawn = chart.lines[:MOST_LINES]
    values = np.array(
        [v for line in drawn for part in (line.values, line.low, line.high) if part is not None for v in part], float
    )
    finite = values[np.isfinite(values)]
    if not len(finite):
        return ""
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    layers = [layer for line in drawn for layer in line.layers]
    names = len(drawn) > 1
    bottom = _BOTTOM + (14 * len(drawn) if names else 0)
    height = _HEIGHT + bottom
    x, y = _scale(min(layers), max(layers), _LEFT, _WIDTH - 8), _scale(low, high, _HEIGHT - 4, _TOP)
    unit = f" ({chart.unit})" if chart.unit else ""
    out = [_label(0, 13, chart.title + unit, weight=600)]
    out += [_label(_LEFT - 6, place, number(v), "end") for v, place in ((low, y(low)), (high, y(high) + 8))]
    out += [_label(x(layer), _HEIGHT + 14, str(layer), "middle") for layer in (min(layers), max(layers))]
    out.append(_label(_WIDTH / 2 + 20, _HEIGHT + 14, "layer", "middle"))
    out.append(f'<path d="M{_LEFT} {_TOP}V{_HEIGHT}H{_WIDTH - 8}" fill="none" stroke="currentColor" opacity=".35"/>')
    for k, line in enumerate(drawn):
        color = ON_LIGHT[k % len(ON_LIGHT)]
        dash = ' stroke-dasharray="4 3"' if k else ""
        out.append(_band(line, x, y, color))
        out.append(f'<path d="{_path(line.layers, line.values, x, y)}" fill="none" stroke="{color}" stroke-width="1.8"{dash}/>')
        if line.note is not None and line.note[0] in line.layers:
            value = float(line.values[list(line.layers).index(line.note[0])])
            if math.isfinite(value):
                out.append(f'<circle cx="{x(line.note[0]):.1f}" cy="{y(value):.1f}" r="3.5" fill="{color}"/>')
        if names:
            place = _HEIGHT + _BOTTOM + 14 * k + 8
            out.append(f'<path d="M{_LEFT} {place - 4}h18" stroke="{color}" stroke-width="1.8"{dash}/>')
            out.append(_label(_LEFT + 24, place, line.name))
    return _svg(_WIDTH, height, out, f"{chart.title} by layer")


def _band(line: Line, x: Any, y: Any, color: str) -> str:
    if line.low is None or line.high is None:
        return ""
    sound = [(a, lo, hi) for a, lo, hi in zip(line.layers, line.low, line.high, strict=True) if np.isfinite([lo, hi]).all()]
    if len(sound) < 2:
        return ""
    there = [f"{x(a):.1f} {y(hi):.1f}" for a, _, hi in sound]
    back = [f"{x(a):.1f} {y(lo):.1f}" for a, lo, _ in reversed(sound)]
    return f'<path d="M{"L".join([*there, *back])}Z" fill="{color}" opacity=".18"/>'


def _path(layers: Sequence[int], values: Sequence[float], x: Any, y: Any) -> str:
    """A line with gaps where a value is undefined."""
    out, pen = [], "M"
    for layer, value in zip(layers, values, strict=True):
        if not np.isfinite(value):
            pen = "M"
            continue
        out.append(f"{pen}{x(layer):.1f} {y(value):.1f}")
        pen = "L"
    return "".join(out)


def _scale(low: float, high: float, start: float, end: float) -> Any:
    span = (high - low) or 1
    return lambda value: start + (value - low) / span * (end - start)


def _label(x: float, y: float, words: str, anchor: str = "start", weight: int = 400) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="11" font-weight="{weight}"'
    return f'<text {place} fill="currentColor" font-family="sans-serif">{text(words)}</text>'


def _svg(width: float, height: float, parts: Iterable[str], alt: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{text(alt)}" style="margin:0 1em .5em 0;vertical-align:top">{"".join(parts)}</svg>'
    )


def _line(name: str, rows: pd.DataFrame) -> Line:
    return Line(name, list(rows["layer"]), list(rows["value"]), list(rows["ci_low"]), list(rows["ci_high"]))


def _title(name: str) -> str:
    return get_metric(name).info.title if name in metrics() else name.replace("_", " ")


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
