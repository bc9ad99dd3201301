"""An evaluation in the terminal: per task the best layer and readout against the last, and the mean curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.report.terminal import sparkline

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
    console.print(_readouts(run))
    for line in m["undefined"][:3]:
        console.print(f"[yellow]undefined[/] {escape(line)}")
    if len(m["undefined"]) > 3:
        console.print(f"[yellow]undefined[/] … and {len(m['undefined']) - 3} more, in manifest.json")
    for warning in m["warnings"]:
        console.print(f"[yellow]note[/] {escape(warning)}")
    for failure in run.failed:
        console.print(f"[red]failed[/] {escape(failure['task'])}: {escape(failure['reason'])}")


def _best(run: Evaluation, wide: bool) -> Table:
    """The best layer of each task; in a narrow terminal its readout stands below the task's name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("task", overflow="fold")  # where it is narrow, words give way, not numbers
    for heading in ("last", "best", "@ layer", "gain over last [95 %]"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tied for best", min_width=13)
    many = run.scores.groupby(["template", "pooling", "final_norm", "sink", "centring"]).ngroups > 1
    if many and wide:
        table.add_column("readout of the best", overflow="fold")
    rows: list[dict[str, Any]] = run.best().to_dict(orient="records")  # type: ignore[assignment]
    for row in rows:
        interval = f" [{100 * row['ci_low']:+.1f}, {100 * row['ci_high']:+.1f}]" if math.isfinite(row["ci_low"]) else ""
        name = escape(row["task"] if row["subset"] == "default" else f"{row['task']} ({row['subset']})")
        cells = [
            f"{name}\n[dim]{escape(row['readout'])}[/]" if many and not wide else name,
            f"{100 * row['last']:.2f}",
            f"{100 * row['best']:.2f}",
            str(row["layer"]),
            f"{100 * row['gain']:+.1f}{escape(interval)}",
            _ranges(row["tied"]),
        ]
        table.add_row(*cells, *([escape(row["readout"])] if many and wide else []))
    return table


def _readouts(run: Evaluation) -> Table:
    """Mean over tasks at every layer, one line per readout, the best first."""
    keys = ["template", "pooling", "final_norm", "sink", "centring"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("mean over tasks", overflow="fold")
    table.add_column("layer 0 → last", no_wrap=True)
    table.add_column("best", justify="right", no_wrap=True)
    table.add_column("last", justify="right", no_wrap=True)
    lines = []
    for key, group in run.scores.groupby(keys):
        by_task = group.groupby(["task", "layer"])["score"].mean().unstack("task")
        # a layer that is undefined for a task has no mean
        lines.append(("/".join(str(part) for part in key), by_task.index.to_numpy(), by_task.to_numpy().mean(axis=1)))
    known = [line for line in lines if np.isfinite(line[2]).any()]
    for name, layers, means in sorted(known, key=lambda line: -float(np.nanmax(line[2])))[:12]:
        at = int(np.nanargmax(means))
        last = f"{100 * means[-1]:.2f}" if math.isfinite(means[-1]) else "–"
        table.add_row(escape(name), sparkline(means), f"{100 * means[at]:.2f} @ {layers[at]}", last)
    return table


def _ranges(layers: list[int]) -> str:
    """Layers as ranges.

    >>> _ranges([1, 2, 3, 7])
    '1–3, 7'
    """
    parts: list[list[int]] = []
    for layer in sorted(layers):
        if parts and layer == parts[-1][-1] + 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}–{p[-1]}" for p in parts)
