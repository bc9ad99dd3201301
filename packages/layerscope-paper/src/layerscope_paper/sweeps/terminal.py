"""A sweep or a recipe in the terminal: its steps, and how each step ended."""

from __future__ import annotations

import math

from rich.markup import escape

from layerscope.core.formatting import format_duration
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
