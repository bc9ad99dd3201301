"""The report as one HTML file: style and script inside it, its data as inert JSON."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.core.columns import PROFILE
from layerscope.core.sites import part_of
from layerscope.core.statistics import INTERVAL
from layerscope.errors import one_line, printable
from layerscope.maps.encoding import for_page
from layerscope.metrics import in_reading_order, metrics
from layerscope.report.choosing import groups
from layerscope.report.contents import Report
from layerscope.report.drawing import ON_DARK, ON_LIGHT
from layerscope.report.headline import BEST, kind_of
from layerscope.report.notices import convention_rows
from layerscope.report.sources import Block, ChoiceGrid, Curves, Line, Scores, Source
from layerscope.version import VERSION

# In reading order: later files use what earlier ones define.
SCRIPTS = [
    "dom",
    "state",
    "scale",
    "shapes",
    "chart",
    "controls",
    "curves",
    "scores",
    "heatmap",
    "choosing",
    "blocks",
    "points",
    "map",
    "tables",
    "main",
]


_MOST_MAPS = 4  # a page is sent to others: more would make it heavy


def page(report: Report) -> str:
    """The report as HTML."""
    style, script = _style(), _script()
    values = {
        "title": escape(one_line(_title(report))),
        "policy": escape(policy(), quote=True),
        "style": style,
        "script": script,
        "lead": escape(one_line(report.headline.lead)),
        "data": inert_json(payload(report)),
    }
    text = _asset("page.html")
    parts = text.split("{{")
    out = [parts[0]]
    for part in parts[1:]:
        name, _, rest = part.partition("}}")
        out += [values[name.strip()], rest]
    return printable("".join(out))


@cache
def policy() -> str:
    """Return the page's policy: only its style and its script run, and nothing is fetched."""
    return (
        f"default-src 'none'; script-src '{_hash(_script())}'; style-src '{_hash(_style())}'; img-src data:; "
        "connect-src 'none'; base-uri 'none'; form-action 'none'"
    )


def inert_json(value: Any) -> str:
    """JSON that cannot end the element it stands in, whatever the texts in it are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in ("<", ">", "&", "\u2028", "\u2029"):
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _title(report: Report) -> str:
    return f"{', '.join(report.models[:4])}{' …' if len(report.models) > 4 else ''} · layerscope"


def _style() -> str:
    return _asset("style.css")


def _script() -> str:
    return (
        '"use strict";\n(() => {\n'
        + "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
        + "\n})();\n"
    )


def _asset(name: str) -> str:
    return files("layerscope.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def payload(report: Report) -> dict[str, Any]:
    """Everything the page shows."""
    measured = list(dict.fromkeys(m for c in report.curves for m in c.table["metric"]))
    n = len(report.curves)
    return {
        "layerscope": VERSION,
        "made": report.made,
        "models": report.models,
        "headline": {"lead": report.headline.lead, "points": report.headline.points},
        "notices": [vars(notice) for notice in report.notices],
        "conventions": {
            "runs": [_run_name(run) for run in report.runs],
            "rows": convention_rows(report.runs),
        },
        "palette": {"light": ON_LIGHT, "dark": ON_DARK},
        "metrics": [_metric(name) for name in in_reading_order(measured)],
        "values": [
            [column.name, column.short or column.name, column.kind is int] for column in _VALUES
        ],
        "interval": INTERVAL,
        "curves": [
            {**_curves(c), **vars(s)} for c, s in zip(report.curves, report.styles[:n], strict=True)
        ],
        "scores": [
            {**_scores(c), **vars(s)} for c, s in zip(report.scores, report.styles[n:], strict=True)
        ],
        "blocks": [
            _block(block, report.headline.lead) for block in report.blocks if block.kind != "map"
        ],
        "maps": [
            {"label": run.label, **for_page(run.map)} for run in report.runs if run.map is not None
        ][:_MOST_MAPS],
        "marks": [_mark(choice) for choice in report.marks],
    }


def _run_name(run: Source) -> str:
    if isinstance(run, Block):
        return run.label
    return f"{run.label} ({'profile' if isinstance(run, Curves) else 'scores'})"


def _mark(choice: Choice) -> dict[str, Any]:
    """The layer that every view of a model points out."""
    rule = None if kind_of(choice) == BEST else choice.rule
    facts = {
        "model": choice.model,
        "layer": choice.layer,
        "n_blocks": choice.layers,
        "readout": choice.readout,
    }
    return {**facts, "kind": kind_of(choice), "rule": rule, "text": choice.reason}


def _block(block: Block, headline: str) -> dict[str, Any]:
    """Probes, or what another package shows."""
    return {
        "kind": block.kind,
        "title": block.title,
        "label": block.label,
        "words": block.told(headline),
        "charts": [
            {
                "title": chart.title,
                "unit": chart.unit,
                "says": chart.says,
                "lines": [_line(line) for line in chart.lines],
            }
            for chart in block.charts
        ],
        "figures": [
            f"data:image/png;base64,{base64.b64encode(figure).decode()}" for figure in block.figures
        ],
        "grid": None if block.grid is None else _grid(block.grid),
        "chosen": block.choice is not None,
        "tables": [
            {"title": title, "inline": title in block.inline, **_columns(table)}
            for title, table in block.tables.items()
        ],
    }


def _grid(grid: ChoiceGrid) -> dict[str, Any]:
    """Rows of numbers, each with its name; places are pairs of a row and a column."""
    kinds = groups(grid)
    rows = [
        {
            "read": read,
            "how": how,
            "kind": kinds[r],
            "open": bool(grid.open[r]),
            "v": _numbers(grid.score[r]),
            "lo": _numbers(grid.low[r]),
            "hi": _numbers(grid.high[r]),
            "cost": _numbers(grid.cost[r]),
            "tied": [int(k) for k in np.flatnonzero(grid.tied[r])],
        }
        for r, (read, how) in enumerate(grid.rows)
    ]
    places = {
        "chosen": grid.chosen,
        "today": grid.today,
        "front": grid.front,
        "budget": grid.budget,
    }
    return {"unit": grid.unit, "layers": grid.layers, "rows": rows, **places}


def _line(line: Line) -> dict[str, Any]:
    ends = {
        short: None if values is None else _numbers(values)
        for short, values in (("lo", line.low), ("hi", line.high))
    }
    blocks = line.blocks if line.blocks is not None else max(line.layers, default=0)
    layers = [int(k) for k in line.layers]
    return {
        "name": line.name,
        "layers": layers,
        "blocks": blocks,
        "v": _numbers(line.values),
        **ends,
        "note": line.note,
    }


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    """A table as columns; a column of numbers stays one, everything else is text."""
    columns = []
    for name in table.columns:
        values = table[name]
        numeric = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        columns.append(
            _numbers(values.to_numpy(float, na_value=math.nan))
            if numeric
            else ["" if _missing(value) else str(value) for value in values]
        )
    return {"head": [str(name) for name in table.columns], "columns": columns}


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _metric(name: str) -> dict[str, Any]:
    known = metrics().get(name)
    if known is None:  # a published table may hold metrics that layerscope does not compute
        return {
            "name": name,
            "title": name,
            "unit": "",
            "level": "other",
            "higher": "",
            "main": False,
            "log": False,
        }
    info = known.info
    shown = {
        "title": info.title,
        "unit": info.unit,
        "level": info.level,
        "higher": info.higher_means,
    }
    return {"name": name, **shown, "main": info.main, "log": info.log_scale}


def _curves(curves: Curves) -> dict[str, Any]:
    table = curves.table
    valley = curves.valley
    inside = table["site"].map(lambda site: part_of(str(site)) or "")
    parts = {}
    for part in dict.fromkeys(inside):
        own = table[inside == part]
        sites = own.drop_duplicates("site")
        order = {site: i for i, site in enumerate(sites["site"])}
        series = [
            {"metric": metric, "norm": norm, "sink": sink, **_series(rows, order)}
            for (metric, norm, sink), rows in own.groupby(
                ["metric", "normalization", "sink"], sort=False
            )
        ]
        layers = [int(k) for k in sites["layer"]]
        parts[part] = {
            "sites": list(order),
            "layer": layers,
            "depth": _numbers(sites["depth"]),
            "series": series,
        }
    return {
        "model": curves.model,
        "label": curves.label,
        "blocks": curves.n_blocks,
        "norm": curves.final_norm,
        "texts": curves.facts.get("texts"),
        "parts": parts,
        "valley": None
        if valley is None
        else {
            "layer": valley.layer,
            "value": _number(valley.value),
            "sink": valley.is_sink,
            "text": valley.sentence(),
        },
    }


_VALUES = [column for column in PROFILE if column.role == "value" and column.kind in (int, float)]


def _series(rows: pd.DataFrame, order: dict[str, int]) -> dict[str, list[Any]]:
    placed = (
        rows.assign(place=rows["site"].map(order))
        .drop_duplicates("place")
        .set_index("place")
        .reindex(range(len(order)))
    )
    out = {
        column.short or column.name: _numbers(placed[column.name])
        for column in _VALUES
        if column.name in placed
    }
    return {
        short: values
        for short, values in out.items()
        if any(value is not None for value in values) or short == "v"
    }


def _scores(scores: Scores) -> dict[str, Any]:
    layers = sorted({int(k) for k in scores.table["layer"]})
    numbers = {"score": "score", "gain": "gain", **dict(zip(("lo", "hi"), INTERVAL, strict=True))}
    blocks = []
    for readout in scores.readouts:
        rows = scores.table[scores.table["readout"] == readout]
        by = {
            name: rows.pivot(index="layer", columns="task", values=name).reindex(layers)
            for name in (*numbers.values(), "tied")
        }
        scored = set(by["score"].columns)
        tasks = [t for t in scores.tasks if t in scored]
        blocks.append(
            {
                "readout": readout,
                "tasks": [scores.tasks.index(t) for t in tasks],
                **{
                    short: [_numbers(100 * by[name][t]) for t in tasks]
                    for short, name in numbers.items()
                },
                "mean": _numbers(100 * scores.mean(readout).reindex(layers))
                if len(tasks) > 1
                else None,
                "tied": [
                    [i for i, value in enumerate(by["tied"][t]) if value is True or value == 1]
                    for t in tasks
                ],
            }
        )
    return {
        "model": scores.model,
        "label": scores.label,
        "blocks": scores.n_blocks,
        "layers": layers,
        "tasks": [{"name": t, "type": scores.task_types.get(t, "")} for t in scores.tasks],
        "readouts": blocks,
        "reference": scores.reference,
    }


def _number(value: Any) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _numbers(values: Iterable[Any]) -> list[float | int | None]:
    return [
        _number(float(value)) if value is not None and value == value else None for value in values
    ]
