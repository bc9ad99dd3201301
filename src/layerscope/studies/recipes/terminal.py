"""A recipe in the terminal: what it will take, and how each step ended."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.studies.recipes.estimate import DOWNLOAD_RATE, Cost, Machine
from layerscope.studies.recipes.read import Recipe
from layerscope.studies.recipes.run import Outcome


def duration(seconds: float) -> str:
    """Seconds as a person would say them.

    >>> duration(5400)
    '1.5 h'
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 1.5 * size or (unit != "days" and seconds >= size):
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def print_estimate(recipe: Recipe, machine: Machine, costs: list[Cost], to_stderr: bool) -> None:
    """A line per step and their sum."""
    console = Console(stderr=to_stderr, highlight=False)
    console.print(f"[bold]{escape(recipe.name)}[/bold]: {escape(recipe.about)}  ·  estimate for {escape(machine.device)}")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("step", "study", "models", "time", "memory", "download"):
        table.add_column(heading, justify="right" if heading in ("time", "memory", "download") else "left")
    for step, cost in zip(recipe.steps, costs, strict=True):
        time = "?" if cost.unknown and not cost.seconds else duration(cost.seconds)
        models = f"{len(step.models)}" if step.models else "none"
        table.add_row(step.name, step.study, models, time, _gigabytes(cost.memory), _gigabytes(cost.download))
    table.add_section()
    total = sum(cost.seconds for cost in costs)
    most = max(cost.memory for cost in costs)
    table.add_row("in all", "", "", duration(total), _gigabytes(most), _gigabytes(sum(cost.download for cost in costs)))
    console.print(table)
    unknown = sorted({name for cost in costs for name in cost.unknown})
    if unknown:
        console.print(f"note nothing is known of {escape(', '.join(unknown))}: not in the numbers.", style="dim")
    rate = f"{DOWNLOAD_RATE / 1e6:.0f} MB/s"
    console.print(f"Rates of arithmetic were measured on this machine just now; downloads are taken at {rate}.", style="dim")


def print_outcome(outcome: Outcome) -> None:
    """One step that has ended."""
    console = Console(highlight=False)
    console.print(
        f"[bold]{escape(outcome.step)}[/bold]  {outcome.status}, {duration(outcome.seconds)}  ·  {escape(str(outcome.run))}"
    )
    for line in outcome.verdict[:2]:
        console.print(f"  {escape(line)}")
    if outcome.error:
        console.print(f"  {escape(outcome.error)}", style="red")


def _gigabytes(size: float) -> str:
    if not size:
        return "–"
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
