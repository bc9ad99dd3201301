"""`layerscope report`: runs as one page, text or figure."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Any

import typer

from layerscope.cli.app import app
from layerscope.cli.options import words
from layerscope.errors import LayerscopeError


@app.command("report")
def report_command(
    runs: list[Path] = typer.Argument(None, help="Folders of finished runs: profiles, evaluations; or a choice as .json."),
    out: Path = typer.Option(Path("report.html"), "--out", "-o", help="File to write; its suffix says the format."),
    kind: str | None = typer.Option(None, "--format", "-f", help="html, md, pdf, png or svg. (default: from the suffix)"),
    atlas: str | None = typer.Option(None, "--atlas", help="Published models to add, e.g. Pythia-410m,bert-base."),
    show: bool = typer.Option(False, "--open", help="Open the file when it is written."),
) -> None:
    """Write one self-contained page about one or several runs: a headline, curves, scores, correlations, tables."""
    from layerscope.report.write import write_report

    target = write_report([*(runs or []), *published(atlas, runs)], out, kind)
    print(target)
    if show:
        webbrowser.open(target.resolve().as_uri())


def published(atlas: str | None, runs: list[Path] | None) -> list[Any]:
    """What the atlas holds about the models named."""
    if atlas is None:
        if not runs:
            raise LayerscopeError("give folders of finished runs, or --atlas with names of published models.")
        return []
    from layerscope.report.published import from_atlas

    return [part for name in words(atlas) or [] for part in from_atlas(name)]
