"""Everything that the page shows, as plain values: sentences, charts with their rows, tables, maps."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from layerscope.core.charts import Chart, Line, Style
from layerscope.core.readout import describe_readout
from layerscope.core.sites import layer_ranges, part_of
from layerscope.core.statistics import INTERVAL
from layerscope.maps import LayerMap
from layerscope.maps.layout import TRUSTED
from layerscope.metrics import in_reading_order, metric_title, metrics
from layerscope.report.charts import COLORS, INK, Mark, line_spec, score_grid
from layerscope.report.choosing import cost_chart, heat_chart
from layerscope.report.contents import Report
from layerscope.report.headline import kind_of
from layerscope.report.notices import convention_rows
from layerscope.report.sources import Block, Curves, Scores, Source
from layerscope.version import VERSION

_MOST_MAPS = 4  # a page is sent to others: more would make it heavy
MEAN = "mean over tasks"


def payload(report: Report) -> dict[str, Any]:
    """Return everything the page shows."""
    curves, scores = report.curves, report.scores
    runs: list[Curves | Scores] = [*curves, *scores]
    by_depth = len({run.n_blocks for run in runs}) > 1
    looks = dict(zip([run.label for run in curves], report.styles, strict=False))
    marks = _marks(report, looks, by_depth)
    shown_marks = {mark.model: mark.layer for mark in report.marks}
    mapped = [run for run in report.runs if run.map is not None][:_MOST_MAPS]
    subject = [f"{run.model}, {run.n_blocks} block{'s' * (run.n_blocks != 1)}" for run in runs]
    return {
        "layerscope": VERSION,
        "made": report.made,
        "subject": list(dict.fromkeys(subject)) or report.models,
        "models": report.models,
        "headline": {"lead": report.headline.lead, "points": report.headline.points},
        "notices": [vars(notice) for notice in report.notices],
        "conventions": {
            "runs": [_run_name(run) for run in report.runs],
            "rows": convention_rows(report.runs),
        },
        "palette": COLORS,
        "ink": INK,
        "texts": list(
            dict.fromkeys(str(run.facts["texts"]) for run in curves if "texts" in run.facts)
        ),
        "runs": [
            {
                "label": run.label,
                "blocks": run.n_blocks,
                "color": looks[run.label].color,
                "dash": looks[run.label].dash,
            }
            for run in curves
        ],
        "sinks": any((run.table["sink"] == "drop").any() for run in curves),
        "norms": list(dict.fromkeys(run.final_norm for run in curves)),
        "parts": list(dict.fromkeys(part for run in curves for part in _parts(run.table))),
        "curves": _curve_charts(curves, looks, marks, by_depth),
        "scores": _score_charts(scores, marks, by_depth) if scores else None,
        "blocks": [
            _block(block, report.headline.lead) for block in report.blocks if block.kind != "map"
        ],
        "tables": _tables(report, shown_marks),
        "maps": [
            {
                "label": run.label,
                "depth": by_depth,
                "note": _map_note(run.map),
                **run.map.for_page(),
            }
            for run in mapped
            if run.map is not None
        ],
    }


def _run_name(run: Source) -> str:
    if isinstance(run, Block):
        return run.label
    return f"{run.label} ({'profile' if isinstance(run, Curves) else 'scores'})"


def _marks(report: Report, looks: Mapping[str, Style], by_depth: bool) -> list[Mark]:
    """Return the layers that every chart points out. Words of marks side by side are joined."""
    colors = {run.model: COLORS[looks[run.label].color] for run in report.curves}
    marks: list[Mark] = []
    for choice in sorted(report.marks, key=lambda mark: mark.layer / max(1, mark.layers or 1)):
        place = choice.layer / choice.layers if by_depth and choice.layers else choice.layer
        words = f"{kind_of(choice)} {choice.layer}"
        near = 0.2 if by_depth else 0.2 * (choice.layers or 1)
        if marks and place - marks[-1].x < near:
            words = f"{marks[-1].words}, {choice.layer}"
            marks[-1] = Mark(marks[-1].x, "", marks[-1].color)
        marks.append(Mark(place, words, colors.get(choice.model, INK)))
    return marks


def _parts(table: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(part_of(str(site)) or "" for site in dict.fromkeys(table["site"])))


def _curve_charts(
    curves: Sequence[Curves], looks: Mapping[str, Style], marks: Sequence[Mark], by_depth: bool
) -> list[dict[str, Any]]:
    """Return a chart per metric: a line per run, part of the block and sink setting."""
    measured = list(dict.fromkeys(name for run in curves for name in run.table["metric"]))
    known = metrics()
    charts = []
    for name in in_reading_order(measured):
        lines = _note_once(
            [line for run in curves for line in _metric_lines(run, name, looks[run.label])]
        )
        info = known[name].info if name in known else None
        title = info.title if info else name
        says = f"Higher: {info.higher_means}." if info and info.higher_means else ""
        chart = Chart(title, lines, info.unit if info else "", says, bool(info and info.log_scale))
        level = info.level if info else "other"
        drawn = _chart(chart, by_depth, marks=marks, legend=False)
        charts.append({**drawn, "level": level, "main": bool(info and info.main)})
    return charts


def _note_once(lines: Sequence[Line]) -> list[Line]:
    """Return lines without the notes that another line has at the same place."""
    notes = set()
    remaining = []
    for line in lines:
        note = line.note and (line.note[0] / (line.blocks or 1), line.note[1])
        remaining.append(replace(line, note=None) if note in notes else line)
        notes.add(note)
    return remaining


def _metric_lines(run: Curves, metric: str, look: Style) -> list[Line]:
    rows = run.table[(run.table["metric"] == metric) & (run.table["normalization"] == "raw")]
    sinks = set(rows["sink"])
    valley = run.valley if metric == "prompt_entropy" else None
    lines = []
    for part in _parts(rows):
        inside = rows["site"].map(lambda site, part=part: (part_of(str(site)) or "") == part)
        for sink in ("keep", "drop"):
            own = rows[inside & (rows["sink"] == sink)]
            if not len(own):
                continue
            note = None
            if valley is not None and sink == "keep" and not part:
                what = {True: ": the sink", False: ": not the sink", None: ""}[valley.is_sink]
                note = (valley.layer, f"layer {valley.layer}{what}")
            tags = {"run": run.label, "norm": run.final_norm, "part": part}
            tags |= {"sink": sink} if len(sinks) > 1 else {}
            name = run.label + (", sink dropped" if sink == "drop" else "")
            lines.append(
                Line.of(
                    name,
                    own,
                    blocks=run.n_blocks,
                    look=look,
                    note=note,
                    dropped=sink == "drop",
                    tags=tags,
                )
            )
    return lines


def _score_charts(
    scores: Sequence[Scores], marks: Sequence[Mark], by_depth: bool
) -> dict[str, Any]:
    """Return the scores by layer, a line per readout, and the grid of tasks by layers."""
    tasks = list(dict.fromkeys(task for run in scores for task in run.tasks))
    several = len(tasks) > 1
    lines, cells = [], []
    for run in scores:
        for readout in sorted(run.readouts, key=lambda name: name != run.reference):
            words = describe_readout(readout)
            name = words if len(scores) == 1 else run.label
            if len(scores) > 1 and len(run.readouts) > 1:
                name = f"{run.label} · {words}"
            grid = 100 * run.grid(readout)
            curves = {task: grid.loc[task] for task in grid.index}
            if several:
                curves = {MEAN: 100 * run.mean(readout), **curves}
            for task, values in curves.items():
                layers = [int(layer) for layer in values.index]
                tags = {"task": task}
                lines.append(Line(name, layers, list(values), blocks=run.n_blocks, tags=tags))
            cells += _score_cells(run, readout, curves)
    start = max(scores, key=lambda run: len(run.readouts) > 1)
    chart = Chart("Score by layer", lines, "main score × 100")
    height = 40 + 22 * (len(tasks) + several)
    spec = score_grid(pd.DataFrame(cells), [MEAN, *tasks] if several else tasks)
    heat = {
        "title": "Task by layer",
        "unit": "",
        "says": _HEAT,
        "height": height,
        "wide": True,
        "live": False,
    }
    return {
        "start": start.label,
        "tasks": [MEAN, *tasks] if several else tasks,
        "evaluations": [
            {
                "label": run.label,
                "readouts": [
                    [name, describe_readout(name)]
                    for name in sorted(run.readouts, key=lambda name: name != run.reference)
                ],
            }
            for run in scores
        ],
        "lines": _chart(chart, by_depth, marks=marks, wide=True),
        "heat": {**heat, **_packed(spec)},
    }


_HEAT = (
    "Color: points gained over the last layer. An outline: the best layer of a task; a dot: a layer "
    "that cannot be told from it."
)


def _score_cells(
    run: Scores, readout: str, curves: Mapping[str, pd.Series]
) -> list[dict[str, Any]]:
    """Return a row per task and layer of one readout, in points."""
    own = run.table[run.table["readout"] == readout]
    rows = {(row["task"], int(row["layer"])): row for row in own.to_dict("records")}
    cells = []
    for task, values in curves.items():
        finite = values.dropna()
        best = int(finite.index[int(finite.argmax())]) if len(finite) else None
        last = float(finite.iloc[-1]) if len(finite) else math.nan
        for layer, score in finite.items():
            row = rows.get((task, int(str(layer))))
            gain = score - last if row is None else 100 * float(row["gain"])
            words = f"{task} · layer {layer} · {score:.2f} · {gain:+.1f}"
            if row is not None and row[INTERVAL[0]] == row[INTERVAL[0]]:
                words += f" [{100 * row[INTERVAL[0]]:+.1f}, {100 * row[INTERVAL[1]]:+.1f}]"
            tied = row is not None and bool(row["tied"])
            words += " over the last layer" + (" · tied with the best" if tied else "")
            cells.append(
                {
                    "by_evaluation": run.label,
                    "by_readout": readout,
                    "name": task,
                    "layer": layer,
                    "gain": gain,
                    "tied": tied,
                    "best": layer == best,
                    "words": words,
                }
            )
    return cells


def _block(block: Block, headline: str) -> dict[str, Any]:
    """Return probes, or what another package shows."""
    charts = [_chart(chart, False, wide=len(block.charts) == 1) for chart in block.charts]
    if block.grid is not None:
        rows = len(block.grid.rows)
        facts = {"unit": "", "wide": True, "live": False}
        heat = {"title": "Every layer under every readout", "height": 60 + 18 * rows}
        heat["says"] = (
            f"Color: {block.grid.unit}. Every row is a way to read a text. "
            "A dot: not told from the best."
        )
        cost = {"title": "What it costs", "height": 340}
        cost["says"] = (
            "Every point is a layer under a readout. The line: what nothing beats at the same cost "
            "or less. Rings: not told from the best."
        )
        charts += [
            {**facts, **heat, **_packed(heat_chart(block.grid).properties(width="container"))},
            {
                **facts,
                **cost,
                **_packed(cost_chart(block.grid).properties(width="container", height=300)),
            },
        ]
    return {
        "kind": block.kind,
        "title": block.title,
        "label": block.label,
        "words": block.words_below(headline),
        "charts": charts,
        "figures": [
            f"data:image/png;base64,{base64.b64encode(figure).decode()}" for figure in block.figures
        ],
        "chosen": block.choice is not None,
        "tables": [
            {"title": title, "inline": title in block.inline, **_columns(table)}
            for title, table in block.tables.items()
        ],
    }


def _map_note(layer_map: LayerMap) -> str:
    """Return why a map is not shown; empty for one that is."""
    if any(reading.is_trusted for reading in layer_map.readings):
        return ""
    reading = layer_map.readings[-1]
    trust = reading.trust[reading.layers.index(reading.at)]
    return (
        f"The map is left out: at layer {reading.at} the trustworthiness of its picture is "
        f"{trust:.2f}. Below {TRUSTED}, points that look near need not be near."
    )


def _chart(
    chart: Chart,
    by_depth: bool,
    *,
    marks: Sequence[Mark] = (),
    legend: bool = True,
    wide: bool = False,
) -> dict[str, Any]:
    """Return a chart as the page takes it."""
    height = 330 if wide else 190
    spec = line_spec(
        replace(chart, unit=""),
        by_depth,
        marks=marks,
        legend=legend and len(chart.lines) > 1,
        height=height,
    )
    facts = {"title": chart.title, "unit": chart.unit, "says": chart.says}
    return {**facts, "height": height, "wide": wide, "live": not chart.bars, **_packed(spec)}


def _packed(figure: Any) -> dict[str, Any]:
    """Return a chart's specification, and its rows as columns."""
    spec = figure.to_dict()
    tables = spec.pop("datasets", {})
    spec.pop("$schema", None)
    spec.pop("config", None)
    spec.pop("title", None)
    return {"spec": spec, "rows": {name: _pack(rows) for name, rows in tables.items()}}


def _pack(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {
        "length": len(rows),
        "columns": {name: _pack_column([row.get(name) for row in rows]) for name in names},
    }


def _pack_column(values: Sequence[Any]) -> Any:
    if any(isinstance(value, str) for value in values):
        words = list(dict.fromkeys(values))
        places = {word: place for place, word in enumerate(words)}
        return {"words": words, "at": [places[value] for value in values]}
    return [value if isinstance(value, bool) else _number(value) for value in values]


def _tables(report: Report, marks: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the tables at the end of the page."""
    tables = []
    for run in report.curves:
        facts = {"label": run.label, "marked": marks.get(run.model)}
        tables.append({"title": "Metrics by layer", **facts, **_columns(_by_layer(run.table))})
        rows = run.table.drop(columns="depth", errors="ignore")
        tables.append({"title": "Metrics with intervals", **facts, **_columns(rows)})
    for score in report.scores:
        facts = {"label": score.label, "marked": None}
        tables.append({"title": "Best layer of each task", **facts, **_columns(_best(score))})
        for readout in score.readouts:
            label = f"{score.label} · {readout}" if len(score.readouts) > 1 else score.label
            wide = (100 * score.grid(readout).T).round(2).reset_index()
            facts = {"label": label, "marked": marks.get(score.model)}
            tables.append({"title": "Scores by layer", **facts, **_columns(wide)})
    for block in report.blocks:
        for title, table in block.tables.items():
            tables.append({"title": title, "label": block.label, "marked": None, **_columns(table)})
    return sorted(tables, key=lambda table: [t["title"] for t in tables].index(table["title"]))


def _by_layer(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per site and a column per metric, with and without the sink."""
    rows = table[table["normalization"] == "raw"]
    names = [
        metric_title(metric, sink)
        for metric, sink in zip(rows["metric"], rows["sink"], strict=True)
    ]
    order = list(dict.fromkeys(names))
    wide = rows.assign(name=names).pivot_table(
        index=["layer", "site"], columns="name", values="value", aggfunc="first", dropna=False, sort=False
    )  # fmt: skip
    return wide.dropna(how="all").reindex(columns=order).sort_index().reset_index()


def _best(score: Scores) -> pd.DataFrame:
    """Return the best layer of each task under each readout, in points."""
    rows = []
    for (readout, task), own in score.table.groupby(["readout", "task"], sort=False):
        known = own.dropna(subset=["score"]).sort_values("layer")
        if not len(known):
            continue
        top, last = known.iloc[int(known["score"].argmax())], known.iloc[-1]
        points = [round(100 * float(top[name]), 1) for name in ("gain", *INTERVAL)]
        tied = ", ".join(layer_ranges([int(layer) for layer in own.loc[own["tied"], "layer"]]))
        scores = [round(100 * float(row["score"]), 2) for row in (last, top)]
        rows.append([task, readout, *scores, int(top["layer"]), *points, tied])
    head = ["task", "readout", "last", "best", "layer", "gain", *INTERVAL, "tied layers"]
    return pd.DataFrame(rows, columns=head)


def _columns(table: pd.DataFrame) -> dict[str, Any]:
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
