"""A sweep or a recipe in the terminal: its steps, how each step ended, and its curves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.core.formatting import format_duration
from layerscope.metrics.registry import few_metrics
from layerscope.report.text import curve_ends, sparkline
from layerscope.sweeps.run import Sweep
from layerscope.terminal import Console, headed_table


def print_plan(done: Sweep, console: Console | None = None) -> None:
    """The steps of a plan, and which of them are finished."""
    table = headed_table()
    for heading in ("step", "what", "models", "texts", "status"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("what", "status"))
    for row in done.jobs.fillna("").to_dict(orient="records"):
        table.add_row(*(escape(str(row[name])) for name in ("job", "kind", "model", "corpus", "status")))
    (console or Console(highlight=False)).print(table)


def print_step(row: Mapping[str, Any], console: Console | None = None) -> None:
    """How one step ended (a row of `jobs`): for a study, the first sentences of its verdict."""
    console = console or Console(highlight=False)
    color = {"complete": "green", "failed": "red"}.get(str(row["status"]), "yellow")
    took = row["seconds"]
    shown = f", {format_duration(float(took))}" if took is not None and math.isfinite(took) else ""
    console.print(f"[bold]{escape(str(row['job']))}[/]  [{color}]{row['status']}[/]{shown}")
    verdict = row.get("verdict")
    for line in list(verdict)[:2] if isinstance(verdict, (list, tuple)) else ():
        console.print(f"  {escape(line)}")


def print_sweep(done: Sweep, console: Console | None = None) -> None:
    """Step by step: how it ended, and its curves from layer 0 to the last, with where they are lowest and highest."""
    console = console or Console(highlight=False)
    for row in done.jobs.to_dict(orient="records"):
        print_step({str(key): value for key, value in row.items()}, console)
        if row.get("verdict"):
            continue
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for justify in ("left", "left", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        for name, line, low, high in _curves(done.table[done.table["job"] == row["job"]]):
            table.add_row(f"  {escape(name)}", line, low, high)
        if table.row_count:
            console.print(table)
    print_failed(done, console)


def print_failed(done: Sweep, console: Console | None = None) -> None:
    """The steps that failed, and why."""
    console = console or Console(highlight=False)
    for one in done.failed:
        console.print(f"[red]failed[/] {escape(one['job'])}: {escape(one['reason'])}")


def _curves(rows: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    named = next((column for column in ("task", "setting") if rows[column].notna().any()), None)
    if named is not None:
        by = ["task", "readout"] if named == "task" else ["setting", "metric"]
        groups = [(" ".join(map(str, key)), part) for key, part in rows.groupby(by, sort=False)]
    else:
        plain = rows[(rows["normalization"] == "raw") & (rows["sink"] == "keep")]
        groups = [(name, plain[plain["metric"] == name]) for name in few_metrics(plain["metric"])]
    lines = []
    for name, part in groups:
        curve = part.dropna(subset=["value"]).sort_values("layer")
        if len(curve):
            low, high = curve_ends(curve["layer"], curve["value"])
            lines.append((name, sparkline(curve["value"]), low, high))
    return lines
