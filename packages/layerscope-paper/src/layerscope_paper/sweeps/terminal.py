"""A sweep or a recipe in the terminal: its steps and their outcomes."""

from __future__ import annotations

import math

from rich.markup import escape

from layerscope.terminal import Console, headed_table
from layerscope_paper.sweeps.run import Sweep


def print_plan(sweep: Sweep) -> None:
    """Print the steps of a plan, and which of them are finished."""
    table = headed_table()
    columns = {
        "step": "job",
        "what": "kind",
        "models": "model",
        "texts": "corpus",
        "status": "status",
    }
    for heading in columns:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("what", "status"))
    for row in sweep.jobs.fillna("").to_dict(orient="records"):
        table.add_row(*(escape(str(row[name])) for name in columns.values()))
    Console(highlight=False).print(table)


def print_sweep(sweep: Sweep) -> None:
    """Print the outcome of each step, and the first sentences of a study's verdict."""
    console = Console(highlight=False)
    for row in sweep.jobs.to_dict(orient="records"):
        color = {"complete": "green", "failed": "red"}.get(str(row["status"]), "yellow")
        seconds = row["seconds"]
        duration = ""
        if seconds is not None and math.isfinite(seconds):
            duration = f", {format_duration(float(seconds))}"
        console.print(f"[bold]{escape(str(row['job']))}[/]  [{color}]{row['status']}[/]{duration}")
        verdict = row.get("verdict")
        for line in list(verdict)[:2] if isinstance(verdict, (list, tuple)) else ():
            console.print(f"  {escape(line)}")
    for failure in sweep.failed:
        console.print(f"[red]failed[/] {escape(failure['job'])}: {escape(failure['reason'])}")


def format_duration(seconds: float) -> str:
    """Return a duration in the largest useful unit.

    >>> format_duration(1), format_duration(75), format_duration(4000), format_duration(200_000)
    ('1 s', '75 s', '67 min', '2.3 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 1.5 * 86400 else f"{seconds / 86400:.1f} days"
