"""Studies in the terminal: the list of them, their options, and what a finished one says."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.core.sites import whole_layers
from layerscope.report.text import curve_ends, sparkline
from layerscope.studies.base import Study, get_study, studies
from layerscope.studies.run import StudyRun
from layerscope.terminal import Console, headed_table

_CURVES = 12  # most that are shown
_WIDEST = 40  # characters of a curve: what names and numbers beside it leave free in a terminal of 80
_SETTINGS = ("model", "step", "condition", "level", "position", "sink")


def print_studies() -> None:
    """Every study on a line."""
    table = headed_table()
    for heading in ("study", "what it does", "paper", "models"):
        table.add_column(heading)
    for study in studies().values():
        table.add_row(study.name, study.title, study.paper, study.model_count)
    Console().print(table)
    print("`layerscope study list NAME` shows a study's options.")


def print_options(chosen: Sequence[Study]) -> None:
    """The options of some studies."""
    for study in chosen:
        paper = f" ({study.paper})" if study.paper else ""
        print(f"{study.name}: {study.title}{paper}; models: {study.model_count}")
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


def print_study(run: StudyRun, console: Console | None = None) -> None:
    """The verdict, then small curves of prompt entropy over the layers."""
    console = console or Console(highlight=False)
    paper = f"  ({run.manifest['paper']})" if run.manifest["paper"] else ""
    console.print(f"[bold]{escape(run.manifest['title'])}[/bold]{escape(paper)}")
    for i, sentence in enumerate(run.verdict):
        console.print(escape(sentence), style="bold" if i == 0 else "")
    _print_curves(console, run)
    for warning in run.manifest["warnings"]:
        console.print(f"note {escape(warning)}", style="dim")


def _print_curves(console: Console, run: StudyRun) -> None:
    """One small curve over the layers per setting, where the table has such."""
    if not {"layer", "metric", "value"} <= set(run.table.columns):
        return
    rows = _whole_layers(get_study(run.name).shown(run.table))
    by = [name for name in _SETTINGS if name in rows and rows[name].nunique() > 1]
    groups = list(rows.groupby(by, sort=False)) if by else [((), rows)]
    shown = Table(box=None, pad_edge=False)
    for name in by:
        shown.add_column(name, overflow="fold")
    for heading in ("prompt entropy, layer 0 → last", "lowest", "highest"):
        shown.add_column(heading, no_wrap=True)
    for key, group in groups[:_CURVES]:
        curve = group.sort_values("layer")
        if curve.empty:
            continue
        ends = curve_ends(curve["layer"], curve["value"])
        shown.add_row(*(escape(str(part)) for part in key), sparkline(curve["value"], _WIDEST), *ends)
    if shown.row_count:
        console.print(shown)
    if len(groups) > _CURVES:
        console.print(f"… and {len(groups) - _CURVES} more in study.csv", style="dim")


def _whole_layers(table: pd.DataFrame) -> pd.DataFrame:
    """Prompt entropy of whole layers: no states inside blocks, no differences between states."""
    rows = whole_layers(table) if "site" in table else table
    rows = rows.dropna(subset=["layer", "value"])
    rows = rows[rows["metric"] == "prompt_entropy"]
    if "kind" in rows and len(rows):
        rows = rows[rows["kind"] == rows["kind"].iloc[0]]
    return rows[rows["normalization"] == "raw"] if "normalization" in rows else rows
