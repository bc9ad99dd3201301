"""Sweeps in a report: the outcome of each job, the main metrics of all jobs on the same axes, and
the tables."""

from __future__ import annotations

from typing import Any

import pandas as pd

from layerscope.core.columns import lowest_and_highest
from layerscope.core.sites import whole_layers
from layerscope.metrics import main_metrics, metrics
from layerscope.metrics.registry import is_plugin
from layerscope.report.section import Chart, Line, Section

_MOST = 12  # lines on one chart


def _few_metrics(names: Any) -> list[str]:
    """Return the first three main metrics among `names`, and all metrics of other packages."""
    shown = main_metrics(names)
    registry = metrics()
    return [*shown[:3], *(name for name in shown[3:] if is_plugin(registry[name]))]


def section(run: Any) -> Section:
    """Return one section for all jobs; each job's folder opens as a run by itself."""
    jobs = run.jobs
    table = run.table
    ended = jobs["status"].value_counts()
    states = ", ".join(f"{count} {status}" for status, count in ended.items())
    words = [f"{len(jobs)} jobs in {run.name}: {states}."]
    charts = [
        chart
        for name in _few_metrics(table["metric"].dropna())
        if (chart := _metric_chart(table, name)) is not None
    ]
    charts += [chart for chart in (_score_chart(table),) if chart is not None]
    models = list(dict.fromkeys(str(name) for name in jobs["model"]))
    return Section.of(
        run,
        f"Sweep: {run.name}",
        words,
        model=", ".join(models[:4]) + (" …" if len(models) > 4 else ""),
        charts=charts,
        tables={"Jobs": jobs, "Lowest and highest of every job": _extremes(table)},
        facts={
            "kind": "sweep",
            "models": len(models),
            "jobs": len(jobs),
            "layerscope": run.manifest.get("layerscope"),
        },
        warnings=[f"the job {job['job']} failed: {job['reason']}" for job in run.failed],
    )


def _curves(rows: pd.DataFrame) -> pd.DataFrame:
    """Return block outputs as measured, without the rows inside blocks."""
    raw = rows["normalization"].isna() | (rows["normalization"] == "raw")
    return whole_layers(rows[raw & (rows["sink"] != "drop")])


def _metric_chart(table: pd.DataFrame, metric: str) -> Chart | None:
    if "setting" in table:  # a study varies more than the layer
        table = table[table["setting"].isna()]
    rows = _curves(table[table["task"].isna() & (table["metric"] == metric)])
    lines = [_line(str(job), curve) for job, curve in rows.groupby("job", sort=False)]
    info = metrics()[metric].info
    return Chart(info.title, lines[:_MOST], info.unit, _left_out(lines)) if lines else None


def _score_chart(table: pd.DataFrame) -> Chart | None:
    rows = table[table["task"].notna()]
    lines = []
    for (job, readout), scores in rows.groupby(["job", "readout"], sort=False):
        by_task = scores.pivot_table(index="layer", columns="task", values="value", sort=True)
        mean = (100 * by_task.mean(axis=1, skipna=False)).rename("value").reset_index()
        lines.append(_line(f"{job} · {readout}", mean))
    if not lines:
        return None
    return Chart("Mean score over tasks", lines[:_MOST], "main score × 100", _left_out(lines))


def _line(name: str, rows: pd.DataFrame) -> Line:
    return Line.of(name, rows.drop_duplicates("layer").sort_values("layer").astype({"layer": int}))


def _left_out(lines: list[Line]) -> str:
    return f"The first {_MOST} of {len(lines)} lines." if len(lines) > _MOST else ""


def _extremes(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    keys = ["job", "task", "readout", "metric"]
    curves = _curves(table).dropna(subset=["value"])
    for key, curve in curves.groupby(keys, sort=False, dropna=False):
        low, high = lowest_and_highest(curve["layer"], curve["value"]).values()
        rows.append([*key, low["value"], low["layer"], high["value"], high["layer"]])
    return pd.DataFrame(rows, columns=[*keys, "lowest", "at", "highest", "at layer"])
