"""Correlations in the terminal: each metric against the scores, with what chance alone gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from layerscope.report.figures.correlation import NAMES
from layerscope.report.terminal.atlas import _table

if TYPE_CHECKING:
    from layerscope.correlation import Correlations, Tables


def print_correlations(found: Correlations, tables: Tables, console: Console | None = None) -> None:
    """One block per measure: layer means with interval, chance and p; beside them the single tasks."""
    console = console or Console()
    facts = {k: v for k, v in tables.facts.items() if k != "model"}
    told = " · ".join(
        f"{k} {v}" if not isinstance(v, dict) else f"{k} {' / '.join(map(str, v.values()))}" for k, v in facts.items()
    )
    console.print(f"\n[bold]{escape(str(tables.facts['model']))}[/]  {escape(told)}")
    within = found.within()
    for measure in dict.fromkeys(found.layers["measure"]):
        mine = found.layers[found.layers["measure"] == measure].sort_values("value", key=abs, ascending=False)
        layers, most = int(mine["layers"].max()), int(mine["tasks"].max())
        console.print(f"\n{NAMES[measure]}  one point per layer ({layers} layers, mean over up to {most} tasks)")
        table = _table("metric", "value [95 %]", "by chance", "Holm p", "tasks", "found")
        for row in mine.to_dict(orient="records"):
            table.add_row(*_cells(row, within, measure))
        console.print(table)
    console.print(
        "by chance: mean and 95 % limit of independent data with as many layers (of the size, for ρ and τ) · tasks: median "
        "over single tasks; found: share of them with adjusted p < 0.05 · layers resemble their neighbours: p is a lower limit",
        style="dim",
    )
    for note in tables.notes:
        console.print(f"[yellow]note[/] {escape(note)}")
    if found.undefined:
        one = found.undefined[0]
        example = f"{one['metric']} with {one['task']}: {one['reason']}"
        console.print(f"[yellow]undefined[/] {len(found.undefined)} pairs, such as {escape(example)}")


def _cells(row: dict[Any, Any], within: Any, measure: str) -> list[str]:
    known = row["ci_low"] is not None and row["ci_low"] == row["ci_low"]
    interval = f" [{row['ci_low']:.2f}, {row['ci_high']:.2f}]" if known else ""
    value = escape(f"{row['value']:.2f}{interval}")
    cells = [escape(str(row["metric"])), value, f"{row['null_mean']:.2f} < {row['null_95']:.2f}", _p(row["p_adjusted"])]
    single = within[(within["metric"] == row["metric"]) & (within["measure"] == measure)]
    if single.empty:
        return [*cells, "–", "–"]
    one = single.iloc[0]
    return [*cells, f"{one['median']:.2f}", f"{one['found']:.0%}"]


def _p(value: float) -> str:
    return f"{value:.4f}" if value < 0.01 else f"{value:.2f}"
