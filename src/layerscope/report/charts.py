"""Every chart is defined here once, with Altair: for notebooks, pictures and pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import Chart, Figure, Line, Style
from layerscope.errors import LayerscopeError
from layerscope.extras import require

__all__ = ["COLORS", "picture", "plot_charts", "styles"]

# The hues of Okabe & Ito 2008, told apart by people with any color vision, shifted until lines are
# clear on white
COLORS = ["#0072B2", "#C85800", "#00855F", "#B0568A", "#2C8CC9", "#A87400", "#3A3A3A"]
DASHES = ["", "9 4", "2 4", "9 3 2 3", "14 4"]
INK = "#16181d"
_DARK_TO_LIGHT = ["#2d1160", "#273f75", "#216e89", "#21918c", "#52ae6d", "#9ad93c"]
_DROPPED = [2, 2]
_DASHED = [4, 3]
_PADDING = 6
_MOST_TICKS = 8


@dataclass(frozen=True)
class Mark:
    """A place on the horizontal axis that a chart points out."""

    x: float
    words: str
    color: str


def altair() -> Any:
    """Return the library that draws, or raise `MissingExtraError`."""
    require("figures")
    import altair as library

    library.data_transformers.disable_max_rows()
    return library


def styles(models: Sequence[str]) -> list[Style]:
    """Return a style for each run, given by its model: a color per model, a dash per run of it.

    >>> [(s.color, s.dash) for s in styles(["a", "b", "a"])]
    [(0, ''), (1, ''), (0, '9 4')]
    """
    names = list(dict.fromkeys(models))
    looks = []
    for place, model in enumerate(models):
        run = models[:place].count(model)
        looks.append(Style(names.index(model) % len(COLORS), DASHES[run % len(DASHES)]))
    return looks


def picture(figure: Figure) -> bytes:
    """Return a chart as PNG."""
    stream = io.BytesIO()
    figure.save(stream, format="png", ppi=110)
    return stream.getvalue()


def plot_charts(
    charts: Sequence[Chart],
    title: str,
    footnote: str = "",
    *,
    x: str = "layer",
    alike: bool = True,
) -> Figure:
    """Return charts side by side with one legend.

    `x` is layer or depth, for charts over layers. `alike`: what a name has in brackets differs from
    chart to chart, and its color does not: `aim (large)` and `aim (huge)` are one model to the eye.
    """
    if not charts:
        raise LayerscopeError("there is nothing to draw.")
    library = altair()
    columns = min(4 if len(charts) > 6 else 3, len(charts))
    looks = _looks(charts, alike)
    width = 420 if len(charts) == 1 else 250
    drawn = [_draw(chart, looks, x == "depth", width) for chart in charts]
    heading = [line for line in f"{title}\n{footnote}".split("\n") if line]
    longest = max((len(name) for name in looks["name"]), default=1)
    names_beside = max(1, min(4, width * columns // (45 + 6 * longest)))
    figure = library.concat(*drawn, columns=columns, spacing=22)
    return (
        figure.resolve_scale(color="shared", strokeDash="shared")
        .properties(title=library.TitleParams(heading, anchor="start", fontSize=12, offset=12))
        .configure_legend(orient="bottom", columns=names_beside, labelLimit=0, symbolSize=300)
        .configure_view(stroke=None)
        .configure_axis(gridColor="#ecedf0", domainColor="#c9ccd2", titleFontWeight="normal")
    )


def page_chart(
    chart: Chart, by_depth: bool, marks: Sequence[Mark], legend: bool, height: int
) -> Figure:
    """Return a chart for the page: as wide as its place, with marked layers and a cursor."""
    looks = _looks([chart], alike=False)
    return _draw(chart, looks, by_depth, "container", height, marks, legend)


def _draw(
    chart: Chart,
    looks: pd.DataFrame,
    by_depth: bool,
    width: int | str,
    height: int = 180,
    marks: Sequence[Mark] = (),
    legend: bool = True,
) -> Figure:
    """Return one chart of curves or bars. `looks` are the names of its lines with their style."""
    library = altair()
    title = library.TitleParams(chart.title, anchor="start", fontSize=12)
    if chart.bars:
        figure = library.layer(*_bars(chart, looks))
    else:
        rows = _rows(chart, looks, by_depth and chart.x is None)
        base = _base(chart, rows, looks, by_depth and chart.x is None, legend)
        layers = _curves(chart, rows, base, looks, legend)
        for mark in marks:
            layers += _draw_mark(mark, base.encoding.x, mark.x > float(rows["x"].max()) / 2)
        figure = library.layer(*layers)
        if width == "container":
            figure = library.layer(*layers, *_cursor(base, height))
            figure = figure.add_params(library.param("cursor", value=-1))
    return figure.properties(width=width, height=height, title=title)


def _looks(charts: Sequence[Chart], alike: bool) -> pd.DataFrame:
    """Return a row per line of the legend: its name, color and dashes, the same in all charts."""
    lines: dict[str, Line] = {}
    for chart in charts:
        for line in chart.lines:
            if line.name and not _is_plain(chart):
                lines.setdefault(_key(line.name, alike), line)
    names = list(lines)
    palette = COLORS
    if any(chart.ordered for chart in charts):
        places = np.linspace(0, len(_DARK_TO_LIGHT) - 1, max(2, len(names))).round().astype(int)
        palette = [_DARK_TO_LIGHT[place] for place in places]
    plain = [name for name in names if lines[name].look is None and name != "printed"]
    rows = []
    for name in names:
        line = lines[name]
        color = "#BBBBBB"
        dash = [1, 0]
        if line.look is not None:
            color = COLORS[line.look.color]
            dash = [int(length) for length in line.look.dash.split()] or dash
        elif name in plain:
            color = palette[plain.index(name) % len(palette)]
        rows.append((name, color, _DROPPED if line.dropped else dash))
    return pd.DataFrame(rows, columns=["name", "color", "dash"])


def _key(name: str, alike: bool) -> str:
    return name.split(" (")[0] if alike else name


def _is_plain(chart: Chart) -> bool:
    """Return whether a chart has bars of one kind, which need no legend."""
    return chart.bars and len(chart.lines) == 1


def _rows(chart: Chart, looks: pd.DataFrame, by_depth: bool) -> pd.DataFrame:
    """Return a row per point of a chart, with what stands beside it."""
    frames = []
    name = ""
    for place, line in enumerate(chart.lines):
        name = line.name or name
        key = name if name in set(looks["name"]) else _key(name, alike=True)
        frame = _line_rows(line, by_depth, chart.x or "layer")
        frames.append(frame.assign(line=place, name=key, named=bool(line.name)))
    return pd.concat(frames, ignore_index=True)


def _line_rows(line: Line, by_depth: bool, axis: str) -> pd.DataFrame:
    layers = np.asarray(line.layers)
    values = np.asarray(line.values, float)
    blocks = line.blocks or (max(1, layers.max()) if by_depth and len(layers) else 1)
    has_band = line.low is not None and line.high is not None and not line.dropped
    frame = pd.DataFrame({"x": layers / blocks if by_depth else layers, "value": values})
    frame["low"] = line.low if has_band else np.nan
    frame["high"] = line.high if has_band else np.nan
    layer, words = line.note or (None, "")
    frame["noted"] = (layers == layer) & np.isfinite(values)
    frame["note"] = np.where(frame["noted"], words, "")
    frame["width"] = 3.0 if line.name.startswith("your run") else 1.8
    if by_depth:
        frame["at"] = [f"depth {depth:.2f}" for depth in frame["x"]]
    else:
        frame["at"] = [f"{axis} {layer}" for layer in layers]
    for tag, value in line.tags.items():
        frame[f"by_{tag}"] = value
    return frame


def _base(
    chart: Chart, rows: pd.DataFrame, looks: pd.DataFrame, by_depth: bool, legend: bool
) -> Figure:
    """Return the points of the curves, by place, value and color."""
    library = altair()
    title = chart.x
    if title is None:
        title = "depth (layer / blocks)" if by_depth else "layer"
    scale = library.Scale(zero=False, nice=False, padding=_PADDING)
    return library.Chart(rows).encode(
        x=library.X("x:Q", title=title, scale=scale, axis=_axis(rows["x"])),
        y=_vertical(chart, rows, "value:Q"),
        color=_channel(library.Color, looks, "color", legend),
    )


def _channel(channel: Any, looks: pd.DataFrame, column: str, legend: bool) -> Any:
    """Return an encoding of the names of lines: by color or by dashes."""
    library = altair()
    scale = library.Scale(domain=list(looks["name"]), range=list(looks[column]))
    key = library.Legend(title=None, symbolType="stroke", symbolStrokeWidth=2, symbolOpacity=1)
    return channel("name:N", scale=scale, legend=key if legend else None)


def _curves(
    chart: Chart, rows: pd.DataFrame, base: Figure, looks: pd.DataFrame, legend: bool
) -> list[Figure]:
    """Return bands, lines and words."""
    library = altair()
    layers = []
    lines = base.encode(detail="line:N")
    if rows["low"].notna().any():
        banded = lines.transform_filter("isValid(datum.low) && isValid(datum.high)")
        band = banded.mark_area(opacity=0.16, strokeWidth=0)
        layers.append(band.encode(y=_vertical(chart, rows, "low:Q"), y2="high:Q"))
    dash = _channel(library.StrokeDash, looks, "dash", legend)
    width = library.StrokeWidth("width:Q", scale=None, legend=None)
    named = lines.transform_filter("datum.named").mark_line(clip=True)
    layers.append(named.encode(strokeWidth=width, strokeDash=dash))
    if not rows["named"].all():
        unnamed = lines.transform_filter("!datum.named")
        layers.append(unnamed.mark_line(strokeWidth=1, strokeDash=_DASHED, clip=True))
    if rows["noted"].any():
        noted = base.transform_filter("datum.noted")
        layers.append(noted.mark_point(size=34, opacity=1, filled=True))
        words = noted.mark_text(align="right", dx=-_PADDING, dy=-4, fontSize=10)
        layers.append(words.encode(text="note:N"))
    return layers


def _cursor(base: Figure, height: int) -> list[Figure]:
    """Return a vertical line and points at the layer that the page points at."""
    library = altair()
    at_cursor = base.transform_filter("datum.x === cursor && isValid(datum.value)")
    gray = library.value("#9aa0a6")
    rule = at_cursor.mark_rule(strokeWidth=1).encode(
        y=library.value(0), y2=library.value(height), color=gray
    )
    return [rule, at_cursor.mark_point(filled=True, size=40, opacity=1)]


def _draw_mark(mark: Mark, across: Any, to_left: bool) -> list[Figure]:
    """Return a dashed line at a place of the horizontal axis, and its words above."""
    library = altair()
    place = library.Chart(pd.DataFrame({"x": [mark.x], "words": [mark.words]})).encode(x=across)
    align = "right" if to_left else "left"
    words = place.mark_text(
        color=mark.color,
        align=align,
        dx=-4 if to_left else 4,
        fontSize=10,
        baseline="bottom",
        dy=-3,
    )
    return [
        place.mark_rule(color=mark.color, strokeDash=[2, 3]),
        words.encode(y=library.value(0), text="words:N"),
    ]


def _bars(chart: Chart, looks: pd.DataFrame) -> list[Figure]:
    """Return bars with their intervals, and the level that they are compared with."""
    library = altair()
    rows = _rows(chart, looks, by_depth=False).assign(x=lambda frame: frame["x"].astype(str))
    color = library.value(COLORS[0])
    if not _is_plain(chart):
        scale = library.Scale(domain=list(looks["name"]), range=list(looks["color"]))
        color = library.Color("name:N", scale=scale, legend=library.Legend(title=None))
    base = library.Chart(rows).encode(
        x=library.X("x:N", sort=None, title=chart.x or None, axis=library.Axis(labelAngle=0)),
        xOffset=library.XOffset("name:N", sort=None),
    )
    lowest = float(rows["value"].min())
    # of high values, such as scores of 50 to 60, a bar from zero shows no difference
    scale = library.Scale(domainMin=30) if lowest > 30 else library.Undefined
    height = library.Y("value:Q", title=chart.unit or None, scale=scale)
    layers = [base.mark_bar(clip=True).encode(y=height, color=color)]
    if rows["low"].notna().any():
        layers.append(base.mark_rule(color=INK).encode(y="low:Q", y2="high:Q"))
    if chart.level is not None:
        level, name = chart.level
        levels = [level, -level] if lowest < 0 else [level]
        names = [name, ""][: len(levels)]
        line = library.Chart(pd.DataFrame({"level": levels, "words": names})).encode(y="level:Q")
        text = line.mark_text(align="left", dy=-6, dx=2, fontSize=10, color=INK)
        layers.append(line.mark_rule(color=INK, strokeDash=_DASHED))
        layers.append(text.encode(x=library.value(0), text="words:N"))
    return layers


def _vertical(chart: Chart, rows: pd.DataFrame, field: str) -> Any:
    """Return the vertical axis: logarithmic for a wide range of positive values, if the chart asks
    for that."""
    library = altair()
    values = rows[["value", "low", "high"]].to_numpy()
    values = values[np.isfinite(values)]
    is_wide = len(values) > 0 and values.min() > 0 and values.max() >= 3 * values.min()
    scale = library.Scale(zero=False, padding=_PADDING)
    if chart.log and is_wide:
        scale = library.Scale(type="log", nice=False, padding=_PADDING)
    axis = library.Axis(tickCount=5)
    return library.Y(field, title=chart.unit or None, scale=scale, axis=axis)


def _axis(values: pd.Series) -> Any:
    """Return the horizontal axis: layers are whole numbers, and few of them are all written."""
    library = altair()
    if not (values == values.round()).all():
        return library.Axis(tickCount=6)
    places = sorted(set(values))
    if len(places) <= _MOST_TICKS:
        return library.Axis(values=places, format="d")
    return library.Axis(tickMinStep=1, tickCount=6, format="d")
