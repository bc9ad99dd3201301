"""`layerscope report`: runs as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, option, parse_list
from layerscope.errors import LayerscopeError

RUNS = typer.Argument(
    None, help="Folders of finished runs of any kind, or files from `select --json`."
)
ATLAS = option(
    None, "--atlas", panel=DATA, help="Published models to add, e.g. Pythia-410m,bert-base."
)


@command("report", "layerscope report runs/profile runs/scores --out report.html")
def report_command(
    output: shared.Printing,
    runs: list[Path] = RUNS,
    out: Path = shared.out_option("HTML file to write.", Path("report.html")),
    atlas: str | None = ATLAS,
    texts: bool = shared.TEXTS,
) -> None:
    """Write one self-contained page about runs: a headline, a map, curves, scores, tables."""
    from layerscope.report.contents import gather
    from layerscope.report.write import check_page_name, write

    check_page_name(out)
    report = gather([*(runs or []), *atlas_runs(atlas, runs)], texts=texts)
    target = write(report, out)
    headline = {"lead": report.headline.lead, "points": report.headline.points}
    output.tell(
        {"report": target, "headline": headline, "runs": [run.label for run in report.runs]},
        target,
        f"open {shared.shell_quote(target)} in a browser",
    )


def atlas_runs(atlas: str | None, runs: list[Path] | None) -> list[Any]:
    """What the atlas holds about the models named."""
    if atlas is None:
        if not runs:
            raise LayerscopeError(
                "give folders of finished runs, or --atlas with names of published models."
            )
        return []
    from layerscope.report.sources import from_atlas

    return [part for name in parse_list(atlas) or [] for part in from_atlas(name)]
