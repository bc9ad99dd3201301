"""A sweep or a recipe in the terminal: what it will take, how each step ended, and its curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rich import box
from rich.markup import escape
from rich.table import Table

from layerscope.metrics.registry import few_metrics
from layerscope.report.text import number, sparkline
from layerscope.sweeps.estimate import DOWNLOAD_RATE, StepEstimate, total_seconds
from layerscope.sweeps.run import Sweep
from layerscope.terminal import Console


def print_estimate(estimates: Sequence[StepEstimate], workers: int = 1, console: Console | None = None) -> None:
    """A line per step and their sum; columns that no step has a number for are left out."""
    console = console or Console(stderr=True, highlight=False)
    cells = {
        "texts": [count(e.texts) for e in estimates],
        "tokens": [count(e.tokens) for e in estimates],
        "weights": [count(e.parameters) for e in estimates],
        "about": ["–" if e.seconds is None else duration(e.seconds) for e in estimates],
        "memory": [size(e.memory) for e in estimates],
        "disk": [size(e.disk) for e in estimates],
        "download": [size(e.download or None) for e in estimates],
    }
    shown = {name: column for name, column in cells.items() if any(cell != "–" for cell in column)}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("step", overflow="fold", min_width=20)
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for i, e in enumerate(estimates):
        table.add_row(escape(e.job) + (f" ({escape(e.note)})" if e.note else ""), *(column[i] for column in shown.values()))
    if len(estimates) > 1:
        table.add_section()
        sums = {
            "about": duration(total_seconds(estimates, workers)),
            "memory": size(max((e.memory or 0 for e in estimates), default=0) or None),
            "disk": size(sum(e.disk or 0 for e in estimates) or None),
            "download": size(sum(e.download for e in estimates) or None),
        }
        table.add_row("in all", *(sums.get(name, "") for name in shown))
    console.print(table)
    if all(e.seconds == 0 for e in estimates):
        console.print("Nothing is left to do.")
        return
    unknown = sum(e.seconds is None for e in estimates)
    shared = f" with {workers} workers" if workers > 1 else ""
    rest = f", and {unknown} steps whose time is not known yet" if unknown else ""
    console.print(
        f"About {duration(total_seconds(estimates, workers))}{shared}{rest}. Timed here, on models of the same shape with one "
        "and two blocks, or from their sizes; expect to be off by half."
    )
    if any(e.download for e in estimates):
        console.print(f"Downloads are taken at {DOWNLOAD_RATE / 1e6:.0f} MB/s.")


def print_step(row: Mapping[str, Any], console: Console | None = None) -> None:
    """How one step ended (a row of `jobs`): for a study, the first sentences of its verdict."""
    console = console or Console(highlight=False)
    color = {"complete": "green", "failed": "red"}.get(str(row["status"]), "yellow")
    took = row["seconds"]
    shown = f", {duration(float(took))}" if took is not None and math.isfinite(took) else ""
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
            low, high = curve.iloc[int(curve["value"].argmin())], curve.iloc[int(curve["value"].argmax())]
            ends = [f"{number(float(end['value']))} @ {int(end['layer'])}" for end in (low, high)]
            lines.append((name, sparkline(curve["value"]), ends[0], ends[1]))
    return lines


def count(value: float | None) -> str:
    """A number of things, shortened.

    >>> count(134_515_008), count(1200), count(None)
    ('135 M', '1200', '–')
    """
    if value is None:
        return "–"
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            scaled = value / (1e3 if unit == "k" else limit)
            return f"{scaled:.3g} {unit}" if scaled < 1000 else f"{scaled:.0f} {unit}"
    return f"{value:.0f}"


def size(value: float | None) -> str:
    """Bytes, shortened."""
    if value is None:
        return "–"
    return f"{value / 2**30:.1f} GB" if value >= 2**30 else f"{max(1, round(value / 2**20))} MB"


def duration(seconds: float) -> str:
    """A time, shortened.

    >>> duration(0), duration(75), duration(4000), duration(200_000)
    ('0 s', '75 s', '1.1 h', '2.3 days')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 1.5 * 86400 else f"{seconds / 86400:.1f} days"
