"""Every chart is defined here once, with Altair: for notebooks, pictures and pages."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from layerscope.core.charts import Chart, Figure, Style
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import require
from layerscope.store import atomic

__all__ = ["COLORS", "picture", "plot_charts", "save_figure", "styles"]

# The hues of Okabe & Ito 2008, told apart by people with any color vision, shifted until lines are
# clear on white
COLORS = ["#0072B2", "#C85800", "#00855F", "#B0568A", "#2C8CC9", "#A87400", "#3A3A3A"]
DASHES = ["", "9 4", "2 4", "9 3 2 3", "14 4"]
MARKERS = ["circle", "square", "triangle", "diamond", "cross"]
INK = "#16181d"
_FAMILIES = {
    "llama": 0,
    "llama3": 0,
    "llm2vec": 0,
    "gpt_neox": 1,
    "pythia": 1,
    "bert": 2,
    "roberta": 2,
    "mpnet": 2,
    "modernbert": 2,
    "eurobert": 2,
    "mamba": 3,
    "mamba2": 3,
    "gpt2": 4,
    "gemma": 5,
    "gemma2": 5,
    "gemma3": 5,
}
_DROPPED, _DASHED = [2, 2], [4, 3]
_FORMATS = ("png", "svg", "pdf")
_OFFSET = 6
_MOST_TICKS = 8


@dataclass(frozen=True)
class Mark:
    """A place on the horizontal axis that a chart points out."""

    x: float
    words: str
    color: str


def altair() -> Any:
    """Return the library that draws, or raise `MissingExtraError`."""
    require_charts()
    import altair as library

    library.data_transformers.disable_max_rows()
    return library


def require_charts() -> None:
    """Raise `MissingExtraError` if a library that charts need is missing."""
    require("figures")


def family_color(family: str) -> int | None:
    """Return the place of a family in the palette, or None for one without a color of its own."""
    return _FAMILIES.get(family.lower().replace("-", "_"))


def styles(runs: Sequence[tuple[str, str]]) -> list[Style]:
    """Return a style for each (family, model). A second model of a family takes a free color; a
    second run of a model another dash.

    >>> [s.color for s in styles([("llama", "a"), ("bert", "b"), ("llama", "a")])]
    [0, 2, 0]
    """
    colors: dict[str, int] = {}
    counts: dict[str, int] = {}
    reserved = {family_color(family) for family, _ in runs}
    looks = []
    for family, model in runs:
        if model not in colors:
            own = family_color(family)
            if own is None or own in colors.values():
                free = [i for i in range(len(COLORS)) if i not in colors.values()]
                unreserved = [i for i in free if i not in reserved]
                own = next(iter([*unreserved, *free]), len(colors) % len(COLORS))
            colors[model] = own
        run = counts.get(model, 0)
        counts[model] = run + 1
        marker = MARKERS[list(colors).index(model) % len(MARKERS)]
        looks.append(Style(colors[model], DASHES[run % len(DASHES)], marker))
    return looks


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a chart; the suffix says the format (png, svg, pdf)."""
    target = Path(path)
    kind = target.suffix.lower().removeprefix(".")
    if kind not in _FORMATS:
        raise UnknownNameError(
            "figure format", target.suffix or target.name, [f".{name}" for name in _FORMATS]
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = atomic.part_of(target)
    try:
        figure.save(str(beside), format=kind, ppi=150)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return target


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
    columns: int | None = None,
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
    if columns is None:
        columns = 4 if len(charts) > 6 else 3
    looks = _looks(charts, alike)
    width = 420 if len(charts) == 1 else 250
    drawn = [draw_chart(chart, looks, x=x, width=width) for chart in charts]
    heading = [line for line in f"{title}\n{footnote}".split("\n") if line]
    beside = max(1, min(4, int(width * min(columns, len(charts)) / (45 + 6 * _longest(looks)))))
    figure = library.concat(*drawn, columns=min(columns, len(charts)), spacing=22)
    return (
        figure.resolve_scale(color="shared", strokeDash="shared")
        .properties(title=library.TitleParams(heading, anchor="start", fontSize=12, offset=12))
        .configure_legend(orient="bottom", columns=beside, labelLimit=0, symbolSize=300)
        .configure_view(stroke=None)
        .configure_axis(gridColor="#ecedf0", domainColor="#c9ccd2", titleFontWeight="normal")
    )


def draw_chart(chart: Chart, looks: pd.DataFrame | None = None, **size: Any) -> Figure:
    """Return one chart of curves or bars."""
    looks = _looks([chart], alike=False) if looks is None else looks
    return _bars(chart, looks, **size) if chart.bars else _curves(chart, looks, **size)


def line_spec(
    chart: Chart, by_depth: bool, *, marks: Sequence[Mark] = (), legend: bool = True, height: int
) -> Figure:
    """Return a chart for the page: as wide as its place, with marked layers and a cursor."""
    looks = _looks([chart], alike=False)
    size: dict[str, Any] = {"width": "container", "height": height}
    if chart.bars:
        return _bars(chart, looks, **size)
    x = "depth" if by_depth else "layer"
    return _curves(chart, looks, x=x, marks=marks, legend=legend, live=True, **size)


def score_grid(cells: pd.DataFrame, tasks: Sequence[str]) -> Figure:
    """Return a grid of tasks by layers: gains over the last layer, the best outlined."""
    library = altair()
    axis = library.Axis(labelAngle=0, labelOverlap=True)
    scale = library.Scale(range=["#b8500a", "#f1f1ee", "#0a5a94"], domainMid=0, interpolate="rgb")
    legend = library.Legend(orient="top", gradientLength=160)
    # not by a list of names: Vega-Lite would write them into an expression
    order = library.EncodingSortField("order", op="min")
    color = library.Color("gain:Q", title="points over the last layer", scale=scale, legend=legend)
    cells = cells.assign(order=cells["name"].map(list(tasks).index))
    base = library.Chart(cells).encode(
        x=library.X("layer:O", title="layer", axis=axis),
        y=library.Y("name:N", sort=order, title=None, axis=library.Axis(labelLimit=180)),
        tooltip="words:N",
        description="words:N",
    )
    rects = base.mark_rect().encode(color=color)
    ties = draw_ties(base)
    best = base.transform_filter("datum.best").mark_rect(
        filled=False, stroke=INK, strokeWidth=2, opacity=1
    )
    return library.layer(rects, ties, best).properties(width="container", height=20 * len(tasks))


def draw_ties(cells: Figure) -> Figure:
    """Return a dot in every cell that cannot be told from the best, clear on any color."""
    return cells.transform_filter("datum.tied").mark_point(
        filled=True, size=24, fill=INK, stroke="white", strokeWidth=1, opacity=1
    )


def _looks(charts: Sequence[Chart], alike: bool) -> pd.DataFrame:
    """Return a row per line of the legend: its name, color and dashes, the same in all charts."""
    named = [line for chart in charts if not _is_plain(chart) for line in chart.lines if line.name]
    plain = [_key(line.name, alike) for line in named if line.look is None]
    count = len(dict.fromkeys(plain))
    palette: Iterator[str] = itertools.cycle(COLORS)
    if any(chart.ordered for chart in charts):
        palette = iter(_ordered_colors(count))
    rows: dict[str, tuple[str, list[int], str]] = {}
    for line in named:
        key = _key(line.name, alike)
        if key in rows:
            continue
        if line.look is not None:
            color = COLORS[line.look.color]
            dash = [int(part) for part in line.look.dash.split()]
        else:
            color = "#BBBBBB" if key == "printed" else next(palette)
            dash = []
        rows[key] = (color, _DROPPED if line.dropped else dash or [1, 0], key)
    return pd.DataFrame(rows.values(), columns=["color", "dash", "name"])


def _is_plain(chart: Chart) -> bool:
    """Return whether a chart has bars of one kind, which need no legend."""
    return chart.bars and len(chart.lines) == 1


def _key(name: str, alike: bool) -> str:
    return name.split(" (")[0] if alike else name


def _longest(looks: pd.DataFrame) -> int:
    return max((len(name) for name in looks["name"]), default=1)


def _ordered_colors(count: int) -> list[str]:
    """Return colors from dark to light that keep their order in gray too."""
    ends = np.array([[0x2D, 0x11, 0x60], [0x21, 0x91, 0x8C], [0x9A, 0xD9, 0x3C]], float)
    places = np.linspace(0, 2, count) if count > 1 else np.array([0.6])
    mixed = [np.interp(places, [0, 1, 2], ends[:, channel]) for channel in range(3)]
    return [
        "#" + "".join(f"{round(value):02x}" for value in color)
        for color in zip(*mixed, strict=True)
    ]


def _channels(looks: pd.DataFrame, has_legend: bool = True) -> dict[str, Any]:
    """Return the encodings of names by color and dashes."""
    library = altair()
    names = list(looks["name"])
    legend = library.Legend(title=None, symbolType="stroke", symbolStrokeWidth=2, symbolOpacity=1)
    if not has_legend:
        legend = None
    color = library.Scale(domain=names, range=list(looks["color"]))
    dash = library.Scale(domain=names, range=list(looks["dash"]))
    return {
        "color": library.Color("name:N", scale=color, legend=legend),
        "strokeDash": library.StrokeDash("name:N", scale=dash, legend=legend),
    }


def _table(chart: Chart, names: Sequence[str], by_depth: bool) -> pd.DataFrame:
    """Return a row per point of a chart, with what stands beside it."""
    frames = []
    name = ""
    for place, line in enumerate(chart.lines):
        name = line.name or name
        key = name if name in names else _key(name, alike=True)
        layers = np.asarray(line.layers)
        values = np.asarray(line.values, float)
        blocks = line.blocks or (max(1, layers.max()) if by_depth and len(layers) else 1)
        frame = pd.DataFrame({"x": layers / blocks if by_depth else layers, "value": values})
        has_band = line.low is not None and line.high is not None and not line.dropped
        frame["low"] = line.low if has_band else np.nan
        frame["high"] = line.high if has_band else np.nan
        layer, words = line.note or (None, "")
        noted = (layers == layer) & np.isfinite(values)
        frame["note"] = np.where(noted, words, "")
        tied = np.isin(layers, line.tied)
        best = np.zeros(len(layers), bool)
        if len(line.tied):
            best[int(np.nanargmax(values))] = True
        frame["mark"] = np.select(
            [best | (noted & (words == "")), tied], ["filled", "ring"], default=""
        )
        frame["line"] = place
        frame["name"] = key
        frame["own"] = bool(line.name)
        frame["width"] = 3.0 if line.name.startswith("your run") else 1.8
        frame["at"] = [
            f"depth {place:.2f}" if by_depth else f"{chart.x or 'layer'} {layer}"
            for layer, place in zip(layers, frame["x"], strict=True)
        ]
        for tag, value in line.tags.items():
            frame[f"by_{tag}"] = value
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _curves(
    chart: Chart,
    looks: pd.DataFrame,
    *,
    x: str = "layer",
    width: Any = 250,
    height: int = 180,
    marks: Sequence[Mark] = (),
    legend: bool = True,
    live: bool = False,
) -> Figure:
    library = altair()
    by_depth = chart.x is None and x == "depth"
    rows = _table(chart, list(looks["name"]), by_depth)
    title = chart.x if chart.x is not None else "depth (layer / blocks)" if by_depth else "layer"
    channels = _channels(looks, legend)
    across = library.X(
        "x:Q",
        title=title,
        scale=library.Scale(zero=False, nice=False, padding=_OFFSET),
        axis=_axis(rows["x"]),
    )
    up = library.Y(
        "value:Q",
        title=chart.unit or None,
        scale=_scale(chart, rows),
        axis=library.Axis(tickCount=5),
    )
    base = library.Chart(rows).encode(x=across, detail="line:N", color=channels["color"])
    lowest = library.Y("low:Q", title=chart.unit or None, scale=_scale(chart, rows))
    layers = []
    if rows["low"].notna().any():
        banded = base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        layers.append(banded.mark_area(opacity=0.16, strokeWidth=0).encode(y=lowest, y2="high:Q"))
    thick = library.StrokeWidth("width:Q", scale=None, legend=None)
    named = base.transform_filter("datum.own").mark_line(clip=True)
    layers.append(named.encode(y=up, strokeWidth=thick, strokeDash=channels["strokeDash"]))
    if not rows["own"].all():
        unnamed = base.transform_filter("!datum.own")
        layers.append(unnamed.mark_line(strokeWidth=1, strokeDash=_DASHED, clip=True).encode(y=up))
    points = library.Chart(rows).encode(x=across, y=up, color=channels["color"])
    for kind in ("ring", "filled"):
        if (rows["mark"] == kind).any():
            marked = points.transform_filter(f"datum.mark === '{kind}'")
            fill = (
                {"filled": True}
                if kind == "filled"
                else {"filled": True, "fill": "white", "strokeWidth": 1.2}
            )
            layers.append(marked.mark_point(size=34, opacity=1, **fill))
    if (rows["note"] != "").any():
        noted = points.transform_filter("datum.note !== ''")
        layers.append(
            noted.mark_text(align="right", dx=-_OFFSET, dy=-4, fontSize=10).encode(text="note:N")
        )
    half = float(rows["x"].max()) / 2 if marks else 0.0
    for mark in marks:
        layers += _draw_mark(mark, across, to_left=mark.x > half)
    figure = library.layer(*layers)
    if live:
        at_cursor = points.transform_filter("datum.x === cursor && isValid(datum.value)")
        rule = at_cursor.mark_rule(color="#9aa0a6", strokeWidth=1).encode(
            y=library.value(0), y2=library.value(height), color=library.value("#9aa0a6")
        )
        dots = at_cursor.mark_point(filled=True, size=40, opacity=1)
        figure = library.layer(rule, *layers, dots).add_params(library.param("cursor", value=-1))
    return figure.properties(width=width, height=height, title=_title(chart))


def _draw_mark(mark: Mark, encoding: Any, to_left: bool) -> list[Figure]:
    """Return a dashed line at a place of the horizontal axis, and its words above."""
    library = altair()
    place = library.Chart(pd.DataFrame({"x": [mark.x], "words": [mark.words]})).encode(x=encoding)
    rule = place.mark_rule(color=mark.color, strokeDash=[2, 3])
    text = place.mark_text(
        color=mark.color, align="right" if to_left else "left", dx=-4 if to_left else 4,
        fontSize=10, baseline="bottom", dy=-3,
    )  # fmt: skip
    return [rule, text.encode(y=library.value(0), text="words:N")] if mark.words else [rule]


def _bars(
    chart: Chart, looks: pd.DataFrame, *, x: str = "layer", width: Any = 250, height: int = 180
) -> Figure:
    library = altair()
    names = list(looks["name"])
    rows = pd.concat(
        [
            pd.DataFrame(
                {
                    "x": [str(name) for name in line.layers],
                    "value": np.asarray(line.values, float),
                    "low": line.low if line.low is not None else np.nan,
                    "high": line.high if line.high is not None else np.nan,
                    "name": line.name if line.name in names else _key(line.name, alike=True),
                }
            )
            for line in chart.lines
        ],
        ignore_index=True,
    )
    legend = library.Legend(title=None)
    scale = library.Scale(domain=names, range=list(looks["color"]))
    color = library.Color("name:N", scale=scale, legend=legend)
    if _is_plain(chart):
        color = library.value(COLORS[0])
    base = library.Chart(rows).encode(
        x=library.X("x:N", sort=None, title=chart.x or None, axis=library.Axis(labelAngle=0)),
        xOffset=library.XOffset("name:N", sort=None),
    )
    lowest = float(rows["value"].min())
    limits = library.Scale(domainMin=30) if lowest > 30 else library.Undefined  # zero says nothing
    up = library.Y("value:Q", title=chart.unit or None, scale=limits)
    layers = [base.mark_bar(clip=True).encode(y=up, color=color)]
    if rows["low"].notna().any():
        layers.append(base.mark_rule(color=INK).encode(y="low:Q", y2="high:Q"))
    if chart.level is not None:
        level, words = chart.level
        for sign in (1, -1) if lowest < 0 else (1,):
            line = library.Chart(pd.DataFrame({"level": [sign * level], "words": [words]}))
            rule = line.mark_rule(color=INK, strokeDash=_DASHED).encode(y="level:Q")
            layers.append(rule)
            if sign > 0:
                text = line.mark_text(align="left", dy=-6, dx=2, fontSize=10, color=INK)
                layers.append(text.encode(x=library.value(0), y="level:Q", text="words:N"))
    return library.layer(*layers).properties(width=width, height=height, title=_title(chart))


def _title(chart: Chart) -> Any:
    return altair().TitleParams(chart.title, anchor="start", fontSize=12)


def _scale(chart: Chart, rows: pd.DataFrame) -> Any:
    """Return the vertical scale: logarithmic for a wide range of positive values, if the chart asks
    for that."""
    library = altair()
    values = rows[["value", "low", "high"]].to_numpy()
    values = values[np.isfinite(values)]
    if chart.limits is not None:
        return library.Scale(domain=list(chart.limits), nice=False)
    is_wide = len(values) > 0 and values.min() > 0 and values.max() >= 3 * values.min()
    if chart.log and is_wide:
        return library.Scale(type="log", nice=False, padding=_OFFSET)
    return library.Scale(zero=False, padding=_OFFSET)


def _axis(values: pd.Series) -> Any:
    """Return the horizontal axis: layers are whole numbers, and few of them are all written."""
    library = altair()
    if not (values == values.round()).all():
        return library.Axis(tickCount=6)
    places = sorted(set(values))
    if len(places) <= _MOST_TICKS:
        return library.Axis(values=places, format="d")
    return library.Axis(tickMinStep=1, tickCount=6, format="d")
