"""Studies in the terminal: what there is, what one takes, what came out."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.report.terminal.profile import number, sparkline
from layerscope.studies.base import Study
from layerscope.studies.registry import get_study, studies
from layerscope.studies.run import StudyRun

_CURVES = 12  # most that are shown


def print_studies() -> None:
    """Every study on a line."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("study", "what it does", "paper", "models"):
        table.add_column(heading)
    for study in studies().values():
        table.add_row(study.name, study.title, study.paper, _count(study))
    Console().print(table)
    print("`layerscope study list NAME` shows a study's options.")


def print_options(chosen: Sequence[Study]) -> None:
    """The options of some studies."""
    for study in chosen:
        print(f"{study.name}: {study.title} ({study.paper}); {_count(study)} model(s)")
        for option in study.options:
            print(f"  --set {option.name}={option.shown}")
            print(textwrap.fill(option.help, 110, initial_indent="      ", subsequent_indent="      "))
        if not study.options:
            print("  no options of its own")


def studies_as_dict(names: Sequence[str]) -> list[dict[str, Any]]:
    """The same as plain values."""
    chosen = [get_study(name) for name in names] if names else list(studies().values())
    return [
        {
            "name": study.name,
            "title": study.title,
            "paper": study.paper,
            "models": {"least": study.models[0], "most": study.models[1]},
            "texts": study.texts,
            "options": [{"name": o.name, "default": o.default, "help": o.help} for o in study.options],
        }
        for study in chosen
    ]


def print_study(run: StudyRun) -> None:
    """The verdict, then the curves of prompt entropy, or of whatever comes first."""
    console = Console(highlight=False)
    console.print(f"[bold]{escape(run.manifest['title'])}[/bold]  ({escape(run.manifest['paper'])})")
    for i, sentence in enumerate(run.verdict):
        console.print(escape(sentence), style="bold" if i == 0 else "")
    _curves(console, run)
    for warning in run.manifest["warnings"]:
        console.print(f"note {escape(warning)}", style="dim")


def _curves(console: Console, run: StudyRun) -> None:
    """One small curve over the layers per setting, where the table has such."""
    table = run.table
    if not {"layer", "metric", "value"} <= set(table.columns):
        return
    held = table[~table["site"].str.match(r"block\.\d+\.")] if "site" in table else table
    if "kind" in held:  # states, not differences between them
        held = held[held["kind"] == held["kind"].iloc[0]]
    held = held.dropna(subset=["layer"])
    metric = "prompt_entropy" if (held["metric"] == "prompt_entropy").any() else None
    if metric is None:
        return
    held = held[held["metric"] == metric]
    if "normalization" in held:
        held = held[held["normalization"] == "raw"]
    by = [c for c in ("model", "step", "condition", "level", "sink") if c in held and held[c].nunique() > 1]
    groups = list(held.groupby(by, sort=False)) if by else [((), held)]
    shown = Table(box=None, pad_edge=False)
    for heading in (*by, f"{metric.replace('_', ' ')}, layer 0 → last", "lowest", "highest"):
        shown.add_column(heading, no_wrap=heading not in by)
    for key, rows in groups[:_CURVES]:
        rows = rows.dropna(subset=["value"]).sort_values("layer")
        if rows.empty:
            continue
        names = key if isinstance(key, tuple) else (key,)
        low, high = rows.iloc[int(rows["value"].argmin())], rows.iloc[int(rows["value"].argmax())]
        ends = [f"{number(end['value'])} @ {int(end['layer'])}" for end in (low, high)]
        shown.add_row(*(escape(str(n)) for n in names), sparkline(rows["value"]), *ends)
    console.print(shown)
    if len(groups) > _CURVES:
        console.print(f"… and {len(groups) - _CURVES} more in study.csv", style="dim")


def _count(study: Study) -> str:
    least, most = study.models
    if most == 0:
        return "none"
    return f"{least}" if most == least else f"{least} or more" if most is None else f"{least} to {most}"
