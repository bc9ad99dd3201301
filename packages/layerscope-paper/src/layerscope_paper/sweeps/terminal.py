"""A sweep or a recipe in the terminal: its steps, and how each step ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rich.markup import escape

from layerscope.core.formatting import format_duration
from layerscope.terminal import Console, headed_table
from layerscope_paper.sweeps.run import Sweep


def print_plan(done: Sweep, console: Console | None = None) -> None:
    """The steps of a plan, and which of them are finished."""
    table = headed_table()
    for heading in ("step", "what", "models", "texts", "status"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("what", "status"))
    for row in done.jobs.fillna("").to_dict(orient="records"):
        table.add_row(
            *(escape(str(row[name])) for name in ("job", "kind", "model", "corpus", "status"))
        )
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
    """How each step ended; `layerscope report` shows their curves."""
    console = console or Console(highlight=False)
    for row in done.jobs.to_dict(orient="records"):
        print_step({str(key): value for key, value in row.items()}, console)
    for one in done.failed:
        console.print(f"[red]failed[/] {escape(one['job'])}: {escape(one['reason'])}")
