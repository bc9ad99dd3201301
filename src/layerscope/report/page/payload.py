"""A report as the plain values that the page's script draws: columns as arrays, five significant digits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pandas as pd

from layerscope.core.sites import part_of
from layerscope.metrics import metrics
from layerscope.report.contents.gather import Report
from layerscope.report.contents.notices import convention_rows
from layerscope.report.contents.sources import Curves, Scores
from layerscope.report.figures.curves import CORE
from layerscope.report.figures.palette import ON_DARK, ON_LIGHT
from layerscope.version import VERSION


def payload(report: Report) -> dict[str, Any]:
    """Everything the page shows."""
    held = list(dict.fromkeys(m for c in report.curves for m in c.table["metric"]))
    n = len(report.curves)
    return {
        "layerscope": VERSION,
        "made": report.made,
        "live": report.live,
        "models": report.models,
        "headline": {"lead": report.headline.lead, "points": report.headline.points},
        "notices": [vars(notice) for notice in report.notices],
        "conventions": {"runs": [_run_name(run) for run in report.runs], "rows": convention_rows(report.runs)},
        "palette": {"light": ON_LIGHT, "dark": ON_DARK},
        "metrics": [_metric(name) for name in _ordered(held)],
        "curves": [{**_curves(c), **vars(s)} for c, s in zip(report.curves, report.styles[:n], strict=True)],
        "scores": [{**_scores(c), **vars(s)} for c, s in zip(report.scores, report.styles[n:], strict=True)],
        "marks": [vars(mark) for mark in report.marks],
        "correlations": [
            {
                "curves": c.curves,
                "scores": c.scores,
                "says": c.noise_says,
                "shuffled": _number(c.shuffled),
                **_correlations(c.table),
            }
            for c in report.correlations
        ],
    }


def _run_name(run: Curves | Scores) -> str:
    return f"{run.label} ({'profile' if isinstance(run, Curves) else 'scores'})"


def _ordered(held: Iterable[str]) -> list[str]:
    known = [*CORE, *metrics()]
    names = set(held)
    return [name for name in dict.fromkeys(known) if name in names] + sorted(names - set(known))


def _metric(name: str) -> dict[str, Any]:
    known = metrics().get(name)
    if known is None:  # a published table may hold metrics that layerscope does not compute
        return {"name": name, "title": name, "unit": "", "level": "other", "higher": "", "main": False, "log": False}
    info = known.info
    return {
        "name": name,
        "title": info.title,
        "unit": info.unit,
        "level": info.level,
        "higher": info.higher_means,
        "main": name in CORE,
        "log": name == "sink_ratio",
    }


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
            for (metric, norm, sink), rows in own.groupby(["metric", "normalization", "sink"], sort=False)
        ]
        layers = [int(k) for k in sites["layer"]]
        parts[part] = {"sites": list(order), "layer": layers, "depth": _numbers(sites["depth"]), "series": series}
    return {
        "model": curves.model,
        "label": curves.label,
        "blocks": curves.n_blocks,
        "norm": curves.final_norm,
        "parts": parts,
        "valley": None
        if valley is None
        else {"layer": valley.layer, "value": _number(valley.value), "sink": valley.is_sink, "text": valley.sentence()},
    }


def _series(rows: pd.DataFrame, order: dict[str, int]) -> dict[str, list[Any]]:
    placed = rows.assign(place=rows["site"].map(order)).drop_duplicates("place").set_index("place").reindex(range(len(order)))
    columns = {"v": "value", "lo": "ci_low", "hi": "ci_high", "n": "n"}
    out = {short: _numbers(placed[name]) for short, name in columns.items() if name in placed}
    return {short: values for short, values in out.items() if any(value is not None for value in values) or short == "v"}


def _scores(scores: Scores) -> dict[str, Any]:
    layers = sorted({int(k) for k in scores.table["layer"]})
    blocks = []
    for readout in scores.readouts:
        rows = scores.table[scores.table["readout"] == readout]
        by = {
            name: rows.pivot(index="layer", columns="task", values=name).reindex(layers)
            for name in ("score", "gain", "ci_low", "ci_high", "tied")
        }
        held = set(by["score"].columns)
        tasks = [t for t in scores.tasks if t in held]
        blocks.append(
            {
                "readout": readout,
                "tasks": [scores.tasks.index(t) for t in tasks],
                "score": [_numbers(100 * by["score"][t]) for t in tasks],
                "gain": [_numbers(100 * by["gain"][t]) for t in tasks],
                "lo": [_numbers(100 * by["ci_low"][t]) for t in tasks],
                "hi": [_numbers(100 * by["ci_high"][t]) for t in tasks],
                "mean": _numbers(100 * scores.mean(readout).reindex(layers)) if len(tasks) > 1 else None,
                "tied": [[i for i, value in enumerate(by["tied"][t]) if value is True or value == 1] for t in tasks],
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


def _correlations(table: pd.DataFrame) -> dict[str, Any]:
    """Names once, numbers as columns."""
    out: dict[str, Any] = {}
    for name in ("readout", "task", "metric", "sink"):
        words = list(dict.fromkeys(table[name]))
        place = {word: i for i, word in enumerate(words)}
        out[name] = {"words": words, "at": [place[word] for word in table[name]]}
    out["rho"] = [None if value is None else round(value, 3) for value in _numbers(table["rho"])]
    out["noise"] = [None if value is None else round(value, 3) for value in _numbers(table["noise"])]
    out["n"] = [int(k) for k in table["n"]]
    return out


def _number(value: Any) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def _numbers(values: Iterable[Any]) -> list[float | int | None]:
    return [_number(float(value)) if value is not None and value == value else None for value in values]
