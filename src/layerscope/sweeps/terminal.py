"""A sweep in the terminal: what it will take, and what came out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.metrics.registry import few_metrics
from layerscope.report.text import number, sparkline
from layerscope.sweeps.estimate import Estimate, total_seconds
from layerscope.sweeps.run import Sweep


def print_estimate(estimates: Sequence[Estimate], workers: int = 1, console: Console | None = None) -> None:
    """One line per job, and the sum."""
    console = console or Console(stderr=True)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("job", overflow="fold", min_width=26)
    for name in ("texts", "tokens", "weights", "about", "memory", "disk"):
        table.add_column(name, justify="right", no_wrap=True)
    for e in estimates:
        about = "–" if e.seconds is None else duration(e.seconds)
        numbers = (count(e.texts), count(e.tokens), count(e.parameters), about, size(e.memory), size(e.disk))
        table.add_row(escape(e.job) + (f" ({escape(e.note)})" if e.note else ""), *numbers)
    console.print(table)
    if all(e.seconds == 0 for e in estimates):
        console.print("Nothing is left to do.")
        return
    unknown = sum(e.seconds is None for e in estimates)
    shared = f" with {workers} workers" if workers > 1 else ""
    rest = f", and {unknown} jobs that cannot be told yet" if unknown else ""
    console.print(
        f"About {duration(total_seconds(estimates, workers))}{shared}{rest}. Timed here, on models of the same shape with one "
        "and two blocks; expect to be off by half."
    )


def print_sweep(done: Sweep, console: Console | None = None) -> None:
    """Job by job: how it ended, and its curves from layer 0 to the last, with where they are lowest and highest."""
    console = console or Console()
    for row in done.jobs.to_dict(orient="records"):
        colour = {"complete": "green", "failed": "red"}.get(str(row["status"]), "yellow")
        took = row["seconds"]
        shown = f", {duration(float(took))}" if took is not None and math.isfinite(took) else ""
        console.print(f"[bold]{escape(str(row['job']))}[/]  [{colour}]{row['status']}[/]{shown}")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for justify in ("left", "left", "right", "right"):
            table.add_column(justify=justify, no_wrap=True)
        for name, line, low, high in _curves(done, str(row["job"])):
            table.add_row(f"  {escape(name)}", line, low, high)
        if table.row_count:
            console.print(table)
    for one in done.failed:
        console.print(f"[red]failed[/] {escape(one['job'])}: {escape(one['reason'])}")


def _curves(done: Sweep, job: str) -> list[tuple[str, str, str, str]]:
    rows = done.table[(done.table["job"] == job)]
    scores = rows[rows["task"].notna()]
    if len(scores):
        groups = [(f"{task} {readout}", part) for (task, readout), part in scores.groupby(["task", "readout"], sort=False)]
    else:
        plain = rows[(rows["normalization"] == "raw") & (rows["sink"] == "keep")]
        groups = [(name, plain[plain["metric"] == name]) for name in few_metrics(plain["metric"])]
    lines = []
    for name, part in groups:
        curve = part.dropna(subset=["value"]).sort_values("layer")
        if len(curve):
            low, high = curve.iloc[int(curve["value"].argmin())], curve.iloc[int(curve["value"].argmax())]
            ends = [f"{number(float(end['value']))} @ {int(end['layer'])}" for end in (low, high)]
            lines.append((name, sparkline(curve["value"]), *ends))
    return lines  # type: ignore[return-value]


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

    >>> duration(0), duration(75), duration(4000)
    ('0 s', '75 s', '1.1 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"
