"""`layerscope report`: runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerscope.cli import shared
from layerscope.cli.app import command


@command("report", shared.START, "layerscope report runs/profile runs/scores --out report.html")
def report_command(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of finished runs, or files from `select --json`."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    no_texts: shared.NoTexts = False,
) -> None:
    """Write one self-contained page about runs: a headline, a map, curves, scores, tables."""
    from layerscope.report.contents import gather
    from layerscope.report.page import check_page_name, write_page

    check_page_name(out)
    report = gather(runs or [], texts=not no_texts)
    target = write_page(report, out)
    labels = [section.label for section in report.sections]
    facts = {"report": target, "headline": report.headline, "runs": labels}
    next_step = f"open {shared.shell_quote(target)} in a browser"
    shared.show(context, facts, lambda: print(target), next_step)
