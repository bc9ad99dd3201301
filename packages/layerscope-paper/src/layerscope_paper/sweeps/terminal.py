"""A sweep or a recipe in the terminal: its steps, and how each step ended."""

from __future__ import annotations

import math

from rich.markup import escape

from layerscope.terminal import Console, headed_table
from layerscope_paper.sweeps.run import Sweep


def print_plan(done: Sweep) -> None:
    """The steps of a plan, and which of them are finished."""
    table = headed_table()
    for heading in ("step", "what", "models", "texts", "status"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("what", "status"))
    for row in done.jobs.fillna("").to_dict(orient="records"):
        table.add_row(
            *(escape(str(row[name])) for name in ("job", "kind", "model", "corpus", "status"))
        )
    Console(highlight=False).print(table)


def print_sweep(done: Sweep) -> None:
    """How each step ended, and the first sentences of a study's verdict; `layerscope report` shows
    their curves."""
    console = Console(highlight=False)
    for row in done.jobs.to_dict(orient="records"):
        color = {"complete": "green", "failed": "red"}.get(str(row["status"]), "yellow")
        took = row["seconds"]
        known = took is not None and math.isfinite(took)
        shown = f", {format_duration(float(took))}" if known else ""
        console.print(f"[bold]{escape(str(row['job']))}[/]  [{color}]{row['status']}[/]{shown}")
        verdict = row.get("verdict")
        for line in list(verdict)[:2] if isinstance(verdict, (list, tuple)) else ():
            console.print(f"  {escape(line)}")
    for one in done.failed:
        console.print(f"[red]failed[/] {escape(one['job'])}: {escape(one['reason'])}")


def format_duration(seconds: float) -> str:
    """A duration, as short as it is still useful.

    >>> format_duration(1), format_duration(75), format_duration(4000), format_duration(200_000)
    ('1 s', '75 s', '67 min', '2.3 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 1.5 * 86400 else f"{seconds / 86400:.1f} days"
