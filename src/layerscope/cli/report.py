"""`layerscope report`: runs as one page."""

from __future__ import annotations

from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command

RUNS = typer.Argument(
    None, help="Folders of finished runs of any kind, or files from `select --json`."
)


@command("report", "layerscope report runs/profile runs/scores --out report.html")
def report_command(
    output: shared.Printing,
    runs: list[Path] = RUNS,
    out: Path = shared.out_option("HTML file to write.", Path("report.html")),
    texts: bool = shared.TEXTS,
) -> None:
    """Write one self-contained page about runs: a headline, a map, curves, scores, tables."""
    from layerscope.report.contents import gather
    from layerscope.report.write import check_page_name, write

    check_page_name(out)
    report = gather(runs or [], texts=texts)
    target = write(report, out)
    headline = {"lead": report.headline.lead, "points": report.headline.points}
    output.tell(
        {"report": target, "headline": headline, "runs": [run.label for run in report.runs]},
        target,
        f"open {shared.shell_quote(target)} in a browser",
    )
