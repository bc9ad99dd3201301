"""Everything that the page shows, as plain values: sentences, charts with their rows, tables, maps."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from layerscope.core.charts import Chart, Figure
from layerscope.core.readout import DEFAULT_READOUT, describe_readout
from layerscope.core.sites import part_of
from layerscope.metrics import in_reading_order, metric_title, metrics
from layerscope.report.charts import COLORS, INK, Mark, page_chart, styles
from layerscope.report.contents import Report
from layerscope.report.section import Drawing, Section
from layerscope.report.sections.evaluation import score_cells, score_chart, score_grid
from layerscope.report.sections.profile import metric_chart
from layerscope.report.words import MEAN, SCORES_SAY, conventions, map_note
from layerscope.version import VERSION

_MOST_MAPS = 4  # a page is sent to others: more would make it heavy

Values = dict[str, Any]
"""An object of JSON."""


def payload(report: Report) -> Values:
    """Return everything the page shows."""
    sections = report.sections
    profiles = [section for section in sections if section.kind == "profile"]
    evaluations = [section for section in sections if section.kind == "evaluation"]
    by_depth = len({section.blocks for section in [*profiles, *evaluations]}) > 1
    looks = styles([profile.model for profile in profiles])
    colors = {run.model: COLORS[look.color] for run, look in zip(profiles, looks, strict=True)}
    marks = _marks(report, colors, by_depth)
    sizes = [f"{section.model}, {section.blocks} blocks" for section in sections if section.blocks]
    rows = conventions(sections)
    mapped = [section for section in sections if section.map is not None]
    sites = [site for profile in profiles for site in profile.rows["site"].unique()]
    return {
        "layerscope": VERSION,
        "made": report.written,
        "subject": list(dict.fromkeys(sizes)) or report.models,
        "models": report.models,
        "headline": report.headline,
        "notices": [vars(notice) for notice in report.notices],
        "conventions": {
            "runs": [section.name for section in sections],
            "rows": rows.to_dict("records"),
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
            {
                "label": section.label,
                "depth": by_depth,
                "note": map_note(section.map),
                **section.map.for_page(),
            }
            for section in mapped[:_MOST_MAPS]
            if section.map is not None
        ],
    }


def _marks(report: Report, colors: Mapping[str, str], by_depth: bool) -> list[Mark]:
    """Return the layers that every chart points out. Words of marks side by side are joined."""
    marks: list[Mark] = []
    for model, choice in sorted(
        report.choices.items(), key=lambda item: item[1].layer / max(1, item[1].layers)
    ):
        scale = choice.layers if by_depth and choice.layers else 1
        place = choice.layer / scale
        words = f"chosen {choice.layer}"
        if marks and place - marks[-1].x < 0.2 * (choice.layers or 1) / scale:
            words = f"{marks[-1].words}, {choice.layer}"
            marks[-1] = replace(marks[-1], words="")
        marks.append(Mark(place, words, colors.get(model, INK)))
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
    """Return the scores by layer, a line per readout, and the grid of tasks by layers."""
    tasks = list(dict.fromkeys(task for run in evaluations for task in run.rows["task"]))
    readouts = {
        run.label: sorted(run.rows["readout"].unique(), key=lambda name: name != DEFAULT_READOUT)
        for run in evaluations
    }
    cells = score_cells(evaluations)
    figure = score_grid(cells)
    title = "Task by layer"
    return {
        "start": max(readouts, key=lambda label: len(readouts[label]) > 1),
        "tasks": sorted(tasks, key=lambda task: task != MEAN),
        "evaluations": [
            {"label": label, "readouts": [[name, describe_readout(name)] for name in names]}
            for label, names in readouts.items()
        ],
        "lines": _chart(score_chart(evaluations), by_depth, marks, is_wide=True),
        "heat": _drawing(title, SCORES_SAY, 40 + 22 * len(tasks), figure),
    }


def _block(section: Section, headline: Sequence[str]) -> Values:
    """Return an improvement, probes, or what another package shows."""
    charts = [_chart(chart, False, is_wide=len(section.charts) == 1) for chart in section.charts]
    charts += [_draw(drawing) for drawing in section.drawings]
    is_above = section.lead and section.lead[0].removesuffix(".").lower() in headline[0].lower()
    return {
        "kind": section.kind,
        "title": section.title,
        "label": section.label,
        "words": section.words if is_above else [*section.lead, *section.words],
        "charts": charts,
        "figures": [
            f"data:image/png;base64,{base64.b64encode(figure).decode()}"
            for figure in section.figures
        ],
        "chosen": section.first,
        "tables": [
            {"title": title, "inline": title in section.inline, **_columns(table)}
            for title, table in section.tables.items()
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
    facts = {"title": chart.title, "unit": chart.unit, "says": chart.says}
    return {**facts, "height": height, "wide": is_wide, "live": not chart.bars, **_pack(figure)}


def _draw(drawing: Drawing) -> Values:
    figure = drawing.draw().properties(width="container", height=drawing.height)
    return _drawing(drawing.title, drawing.says, drawing.height + 50, figure)


def _drawing(title: str, says: str, height: int, figure: Figure) -> Values:
    facts = {"title": title, "unit": "", "says": says, "height": height}
    return {**facts, "wide": True, "live": False, **_pack(figure)}


def _pack(figure: Figure) -> Values:
    """Return a chart's specification, and its rows as columns."""
    spec = figure.to_dict()
    tables = spec.pop("datasets", {})
    for name in ("$schema", "config", "title"):
        spec.pop(name, None)
    return {"spec": spec, "rows": {name: _pack_rows(rows) for name, rows in tables.items()}}


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
    layers = {model: choice.layer for model, choice in report.choices.items()}
    for section in report.sections:
        facts = {"label": section.label, "marked": layers.get(section.model)}
        if section.kind == "profile":
            table = _metrics_by_layer(section.rows)
            yield {"title": "Metrics by layer", **facts, **_columns(table)}
        elif section.kind == "evaluation":
            best = section.tables["Best layer of each task"]
            title = "Best layer of each task"
            yield {"title": title, "label": section.label, "marked": None, **_columns(best)}
            for readout, rows in section.rows.groupby("readout", sort=False):
                rows = rows[rows["task"] != MEAN]
                order = list(rows["task"].unique())
                wide = rows.pivot(index="layer", columns="task", values="score")[order]
                facts["label"] = f"{section.label} · {readout}"
                table = wide.round(2).reset_index()
                yield {"title": "Scores by layer", **facts, **_columns(table)}
        else:
            for title, table in section.tables.items():
                facts = {"label": section.label, "marked": None}
                yield {"title": title, **facts, **_columns(table)}


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
