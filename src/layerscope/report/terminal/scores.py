"""An evaluation in the terminal: per task the best layer and readout against the last, and the mean curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.core.readout import READOUT_COLUMNS, Readout
from layerscope.core.sites import layer_ranges
from layerscope.report.terminal.profile import sparkline

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation


def print_evaluation(run: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation for a person. Scores are MTEB's main scores × 100."""
    console = console or Console()
    m = run.manifest
    console.print(
        f"\n[bold]{escape(str(m['model']['name']))}[/]  {m['model']['n_blocks']} blocks · {m['counts']['texts']} distinct texts, "
        f"{m['counts']['encoded']} encoded now · up to {m['conventions']['max_length']} tokens · "
        f"{'vectors of length 1 · ' if m['conventions'].get('unit_length') else ''}scores × 100"
    )
    console.print(_best(run, wide=console.width >= 120))
    console.print(_readouts(run, width=31 if console.width >= 100 else 24))
    for line in m["undefined"][:3]:
        console.print(f"[yellow]undefined[/] {escape(line)}")
    if len(m["undefined"]) > 3:
        console.print(f"[yellow]undefined[/] … and {len(m['undefined']) - 3} more, in manifest.json")
    for warning in m["warnings"]:
        console.print(f"[yellow]note[/] {escape(warning)}")
    for failure in run.failed:
        console.print(f"[red]failed[/] {escape(failure['task'])}: {escape(failure['reason'])}")


def _best(run: Evaluation, wide: bool) -> Table:
    """The best layer of each task. With several readouts the gain is over what a user has who changes nothing: the last layer,
    read the default way. In a narrow terminal the readout stands below the task's name, the ties below the gain."""
    rows: list[dict[str, Any]] = run.best().to_dict(orient="records")  # type: ignore[assignment]
    many = run.scores.groupby(READOUT_COLUMNS).ngroups > 1
    against = "default_" if many and all(math.isfinite(row["gain_over_default"]) for row in rows) else ""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("task", overflow="fold")  # where it is narrow, words give way, not numbers
    gain = "gain over default [95 %]" if against else "gain over last [95 %]"
    for heading in ("default" if against else "last", "best", "@ layer", gain):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide or not many:
        table.add_column("tied for best", min_width=13)
    if many and wide:
        table.add_column("readout of the best", overflow="fold")
    for row in rows:
        low, high = row[f"{against}ci_low"], row[f"{against}ci_high"]
        interval = f" [{100 * low:+.1f}, {100 * high:+.1f}]" if math.isfinite(low) else ""
        name = escape(row["task"] if row["subset"] == "default" else f"{row['task']} ({row['subset']})")
        gained = f"{100 * row['gain_over_default' if against else 'gain']:+.1f}{escape(interval)}"
        numbers = [f"{100 * row[f'{against}last']:.2f}", f"{100 * row['best']:.2f}", str(row["layer"])]
        tied, readout = ", ".join(layer_ranges(row["tied"])), escape(row["readout"])
        if many and not wide:
            table.add_row(f"{name}\n[dim]{readout}[/]", *numbers, f"{gained}\n[dim]ties: {tied}[/]")
        else:
            table.add_row(name, *numbers, gained, tied, *([readout] if many else []))
    if against:
        table.caption = "default: the last layer under plain/mean/applied/keep/none"
        table.caption_justify = "left"
    return table


def _readouts(run: Evaluation, width: int) -> Table:
    """Mean over tasks at every layer, one line per readout, the best first; curves of up to `width` characters."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("mean over tasks", overflow="fold")
    table.add_column("layer 0 → last", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    lines = []
    for key, group in run.scores.groupby(READOUT_COLUMNS):
        by_task = group.groupby(["task", "layer"])["score"].mean().unstack("task")
        # a layer that is undefined for a task has no mean
        lines.append((Readout(*map(str, key)).name, by_task.index.to_numpy(), by_task.to_numpy().mean(axis=1)))
    known = [line for line in lines if np.isfinite(line[2]).any()]
    for name, layers, means in sorted(known, key=lambda line: -float(np.nanmax(line[2])))[:12]:
        at = int(np.nanargmax(means))
        last = f"{100 * means[-1]:.2f}" if math.isfinite(means[-1]) else "–"
        table.add_row(escape(name), sparkline(_narrowed(means, width)), f"{100 * means[at]:.2f} @ {layers[at]}", last)
    return table


def _narrowed(values: np.ndarray, width: int) -> np.ndarray:
    """At most `width` values, evenly spaced, the first and the last among them."""
    if len(values) <= width:
        return values
    return values[np.round(np.linspace(0, len(values) - 1, width)).astype(int)]
