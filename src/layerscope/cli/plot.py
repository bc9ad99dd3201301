"""`layerscope plot`: curves of one or several runs in one figure."""

from __future__ import annotations

from pathlib import Path

import typer

from layerscope.cli.app import app
from layerscope.cli.options import words


@app.command("plot")
def plot_command(
    runs: list[Path] = typer.Argument(..., help="Folders of finished runs."),
    out: Path = typer.Option(Path("profile.png"), "--out", "-o", help="File to write; its suffix says png, svg or pdf."),
    metrics: str | None = typer.Option(None, "--metrics", help="Comma-separated metric names."),
    x: str = typer.Option("depth", "--x", help="depth or layer."),
) -> None:
    """Draw the curves of runs on the same axes."""
    from layerscope.profiling import Run
    from layerscope.report.drawing import save_figure
    from layerscope.report.sections.profile import plot_profiles

    loaded = [Run.load(run) for run in runs]
    print(save_figure(plot_profiles(loaded, words(metrics), x=x), out))
