"""The report as one HTML file: style and scripts inside it, its data as inert JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from html import escape
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.cache import cache_dir
from layerscope.core.charts import Chart, Figure
from layerscope.core.sites import part_of
from layerscope.errors import InvalidValueError, one_line, printable
from layerscope.extras import require
from layerscope.metrics import in_reading_order, metric_title, metrics
from layerscope.report.charts import COLORS, INK, Mark, page_chart, styles
from layerscope.report.contents import Report, gather
from layerscope.report.profile import metric_chart
from layerscope.report.scores import BEST_LAYERS, score_chart
from layerscope.report.section import Section
from layerscope.report.words import MEAN, conventions, map_note
from layerscope.store import atomic
from layerscope.version import VERSION

__all__ = ["payload", "write_report"]

# In reading order: later files use what earlier ones define.
SCRIPTS = ["dom", "state", "charts", "controls", "points", "map", "tables", "main"]
# The palette of charts on near-black
ON_DARK = ["#4BA3DB", "#F08A4B", "#3CC79B", "#E29BC3", "#8CCBF2", "#F0B840", "#D8D8D8"]
_MOST_MAPS = 4  # a page is sent to others: more would make it heavy

Values = dict[str, Any]
"""An object of JSON."""


def write_report(runs: Any, out: str | Path = "report.html", *, texts: bool = True) -> Path:
    """Write one self-contained HTML page about runs of any kind: folders, runs, maps, or choices of
    a layer; one, or several in a list.

        layerscope.write_report(run)
        layerscope.write_report(["runs/a", "runs/b"], "both.html")

    With `texts=False` the page holds no item of yours.
    """
    check_page_name(out)
    several = isinstance(runs, Iterable) and not isinstance(runs, str)
    return write_page(gather(runs if several else [runs], texts=texts), out)


def write_page(report: Report, out: str | Path) -> Path:
    """Write a report that was put together already."""
    atomic.write_text(Path(out), page(report))
    return Path(out)


def check_page_name(out: str | Path) -> None:
    """Raise an error unless the file's name ends in .html or .htm."""
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise InvalidValueError(
            f"a report is an HTML page, and {out} does not end in .html. "
            "For a picture, save a run's chart: `run.plot().save('run.svg')`."
        )


def page(report: Report) -> str:
    """Return the report as HTML."""
    ellipsis = " …" if len(report.models) > 4 else ""
    title = f"{', '.join(report.models[:4])}{ellipsis} · layerscope"
    values = {
        "title": escape(one_line(title)),
        "policy": escape(policy(), quote=True),
        "style": _style(),
        "vega": base64.b64encode(zlib.compress(_vega().encode(), 9)).decode(),
        "script": _script(),
        "lead": escape(one_line(report.headline[0].removesuffix("."))),
        "data": inert_json(payload(report)),
    }
    head, *named_pieces = _asset("page.html").split("{{")
    pieces = [head]
    for piece in named_pieces:
        name, _, text = piece.partition("}}")
        pieces += [values[name.strip()], text]
    return printable("".join(pieces))


@cache
def policy() -> str:
    """Return the page's policy: only its style and its scripts run, and nothing is fetched."""
    scripts = " ".join(f"'{_hash(text)}'" for text in (_vega(), _script()))
    return (
        f"default-src 'none'; script-src {scripts}; style-src '{_hash(_style())}'; "
        "img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def inert_json(value: Any) -> str:
    """Return JSON that cannot end the element it stands in, whatever the texts in it are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


@cache
def _vega() -> str:
    """Return the program that draws the charts. It is put together once and kept in the cache."""
    require("figures")
    import vl_convert

    file = cache_dir() / "vega" / f"{version('vl-convert-python')}.js"
    if not file.is_file():
        bundle: Any = vl_convert.javascript_bundle  # its stub does not know that all has a default
        atomic.write_text(file, str(bundle()))
    return file.read_text(encoding="utf-8")


def _style() -> str:
    themes = []
    for selector, palette in ((":root", COLORS), (":root[data-theme=dark]", ON_DARK)):
        colors = ";".join(f"--c{place}:{color}" for place, color in enumerate(palette))
        themes.append(f"{selector}{{{colors}}}")
    return "\n".join([*themes, _asset("style.css")])


def _script() -> str:
    body = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _asset(name: str) -> str:
    return files("layerscope.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def payload(report: Report) -> Values:
    """Return everything the page shows as plain values."""
    sections = report.sections
    profiles = [section for section in sections if section.kind == "profile"]
    evaluations = [section for section in sections if section.kind == "evaluation"]
    by_depth = len({section.blocks for section in [*profiles, *evaluations]}) > 1
    looks = styles([profile.model for profile in profiles])
    colors = {run.model: COLORS[look.color] for run, look in zip(profiles, looks, strict=True)}
    marks = _marks(report, colors, by_depth)
    sizes = [f"{section.model}, {section.blocks} blocks" for section in sections if section.blocks]
    sites = [site for profile in profiles for site in profile.rows["site"].unique()]
    maps = [(section.label, section.map) for section in sections if section.map is not None]
    return {
        "layerscope": VERSION,
        "made": report.written,
        "subject": list(dict.fromkeys(sizes)) or report.models,
        "models": report.models,
        "headline": report.headline,
        "notices": [vars(notice) for notice in report.notices],
        "conventions": {
            "runs": [section.name for section in sections],
            "rows": conventions(sections).to_dict("records"),
        },
        "palette": COLORS,
        "ink": INK,
        "texts": list(dict.fromkeys(str(profile.facts["texts"]) for profile in profiles)),
        "runs": [
            {"label": run.label, "blocks": run.blocks, "color": look.color, "dash": look.dash}
            for run, look in zip(profiles, looks, strict=True)
        ],
        "sinks": any((profile.rows["sink"] == "drop").any() for profile in profiles),
        "norms": list(dict.fromkeys(str(profile.facts["final norm"]) for profile in profiles)),
        "parts": list(dict.fromkeys(part_of(str(site)) or "" for site in sites)),
        "curves": _curves(profiles, marks, by_depth),
        "scores": _scores(evaluations, marks, by_depth) if evaluations else None,
        "blocks": [
            _block(section, report.headline)
            for section in sections
            if section.kind not in ("profile", "evaluation", "map")
        ],
        "tables": list(_tables(report)),
        "maps": [
            {"label": label, "depth": by_depth, "note": map_note(shown), **shown.for_page()}
            for label, shown in maps[:_MOST_MAPS]
        ],
    }


def _marks(report: Report, colors: Mapping[str, str], by_depth: bool) -> list[Mark]:
    """Return the layers that every chart points out, each in its model's color."""
    marks: list[Mark] = []
    for model, choice in report.choices.items():
        scale = choice.layers if by_depth and choice.layers else 1
        words = str(choice.layer) if marks else f"chosen {choice.layer}"
        marks.append(Mark(choice.layer / scale, words, colors.get(model, INK)))
    return marks


def _curves(profiles: Sequence[Section], marks: Sequence[Mark], by_depth: bool) -> list[Values]:
    """Return a chart per metric: a line per run, part of the block and sink setting."""
    names = list(dict.fromkeys(name for run in profiles for name in run.rows["metric"]))
    charts = []
    for name in in_reading_order(names):
        info = metrics()[name].info if name in metrics() else None
        drawn = _chart(metric_chart(profiles, name), by_depth, marks, legend=False)
        level = info.level if info else "other"
        charts.append({**drawn, "level": level, "main": bool(info and info.main)})
    return charts


def _scores(evaluations: Sequence[Section], marks: Sequence[Mark], by_depth: bool) -> Values:
    """Return the scores by layer of every task, a line per readout."""
    tasks = list(dict.fromkeys(task for run in evaluations for task in run.rows["task"]))
    return {
        "tasks": sorted(tasks, key=lambda task: task != MEAN),
        "lines": _chart(score_chart(evaluations), by_depth, marks, is_wide=True),
    }


def _block(section: Section, headline: Sequence[str]) -> Values:
    """Return an improvement, probes, or what another package shows."""
    charts = [_chart(chart, False, is_wide=len(section.charts) == 1) for chart in section.charts]
    for drawing in section.drawings:
        figure = drawing.draw().properties(width="container", height=drawing.height)
        charts.append(_drawn(drawing.title, drawing.says, drawing.height + 50, figure))
    is_above = section.lead and section.lead[0].removesuffix(".").lower() in headline[0].lower()
    return {
        "kind": section.kind,
        "title": section.title,
        "words": section.words if is_above else [*section.lead, *section.words],
        "charts": charts,
        "figures": [
            f"data:image/png;base64,{base64.b64encode(figure).decode()}"
            for figure in section.figures
        ],
        "chosen": section.first,
        "tables": [
            {"title": title, **_columns(section.tables[title])}
            for title in section.inline
            if title in section.tables
        ],
    }


def _chart(
    chart: Chart,
    by_depth: bool,
    marks: Sequence[Mark] = (),
    legend: bool = True,
    is_wide: bool = False,
) -> Values:
    """Return a chart as the page takes it."""
    height = 330 if is_wide else 190
    has_legend = legend and len(chart.lines) > 1
    figure = page_chart(replace(chart, unit=""), by_depth, marks, has_legend, height)
    drawn = _drawn(chart.title, chart.says, height, figure)
    return {**drawn, "unit": chart.unit, "wide": is_wide, "live": not chart.bars}


def _drawn(title: str, says: str, height: int, figure: Figure) -> Values:
    """Return a figure's specification, and its rows as columns."""
    spec = figure.to_dict()
    tables = spec.pop("datasets", {})
    for name in ("$schema", "config", "title"):
        spec.pop(name, None)
    return {
        "title": title,
        "unit": "",
        "says": says,
        "height": height,
        "wide": True,
        "live": False,
        "spec": spec,
        "rows": {name: _pack_rows(rows) for name, rows in tables.items()},
    }


def _pack_rows(rows: Sequence[Mapping[str, Any]]) -> Values:
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _pack_column([row.get(name) for row in rows]) for name in names}
    return {"length": len(rows), "columns": columns}


def _pack_column(values: Sequence[Any]) -> Any:
    """Return numbers as they are; words once, with the place of each row's."""
    if any(isinstance(value, str) for value in values):
        words = list(dict.fromkeys(values))
        places = {word: place for place, word in enumerate(words)}
        return {"words": words, "at": [places[value] for value in values]}
    return [value if isinstance(value, bool) else _number(value) for value in values]


def _tables(report: Report) -> Iterable[Values]:
    """Return the tables at the end of the page, in the order of the sections."""
    for section in report.sections:
        tables = dict(section.tables)
        marked = None
        if section.kind == "profile":
            choice = report.choices.get(section.model)
            marked = choice.layer if choice else None
            tables = {"Metrics by layer": _metrics_by_layer(section.rows)}
        elif section.kind == "evaluation":
            rows = section.rows[section.rows["task"] != MEAN].drop(columns="tied")
            tables = {BEST_LAYERS: tables[BEST_LAYERS], "Scores by layer": rows.round(2)}
        for title, table in tables.items():
            yield {"title": title, "label": section.label, "marked": marked, **_columns(table)}


def _metrics_by_layer(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per site and a column per metric, with and without the sink."""
    rows = table[table["normalization"] == "raw"]
    pairs = zip(rows["metric"], rows["sink"], strict=True)
    rows = rows.assign(name=[metric_title(metric, sink) for metric, sink in pairs])
    wide = rows.pivot_table(
        index=["layer", "site"], columns="name", values="value", aggfunc="first", dropna=False
    )
    order = list(rows["name"].unique())
    return wide.dropna(how="all").reindex(columns=order).sort_index().reset_index()


def _columns(table: pd.DataFrame) -> Values:
    """Return a table as columns; a column of numbers stays one, everything else is text."""
    columns: list[list[Any]] = []
    for name in table.columns:
        values = table[name]
        if pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values):
            columns.append([_number(value) for value in values.to_numpy(float, na_value=math.nan)])
        else:
            columns.append(["" if pd.isna(value) else str(value) for value in values])
    return {"head": [str(name) for name in table.columns], "columns": columns}


def _number(value: Any) -> float | int | None:
    """Return a number with five digits, or None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short
