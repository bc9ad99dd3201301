"""Studies in the terminal: their list, their options, and the verdict of a finished one."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from rich.markup import escape

from layerscope.terminal import Console, headed_table
from layerscope_paper.studies.base import STUDIES, Study
from layerscope_paper.studies.run import StudyRun


def print_studies() -> None:
    """Print a line per study."""
    table = headed_table()
    for heading in ("study", "what it does", "paper", "models"):
        table.add_column(heading)
    for study in STUDIES.all().values():
        table.add_row(study.name, study.title, study.paper, study.model_count)
    Console().print(table)
    print("`layerscope-paper study list NAME` shows a study's options.")


def print_options(studies: Sequence[Study]) -> None:
    """Print the options of some studies."""
    for study in studies:
        paper = f" ({study.paper})" if study.paper else ""
        print(f"{study.name}: {study.title}{paper}; models: {study.model_count}")
        for option in study.options:
            print(f"  --set {option.name}={option.shown}")
            print(
                textwrap.fill(option.help, 110, initial_indent="      ", subsequent_indent="      ")
            )
        if not study.options:
            print("  no options")


def studies_as_dict(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return studies (by default all) and their options as plain values."""
    return [
        {
            "name": study.name,
            "title": study.title,
            "paper": study.paper,
            "models": {"least": study.models[0], "most": study.models[1]},
            "texts": study.texts,
            "options": [
                {"name": o.name, "default": o.default, "help": o.help} for o in study.options
            ],
        }
        for study in map(STUDIES.get, names or STUDIES.all())
    ]


def print_study(run: StudyRun) -> None:
    """Print the verdict of a study; its curves are in the figure."""
    console = Console(highlight=False)
    paper = f"  ({run.manifest['paper']})" if run.manifest["paper"] else ""
    console.print(f"[bold]{escape(run.manifest['title'])}[/bold]{escape(paper)}")
    for i, sentence in enumerate(run.verdict):
        console.print(escape(sentence), style="bold" if i == 0 else "")
    for warning in run.manifest["warnings"]:
        console.print(f"note {escape(warning)}", style="dim")
