"""`layerscope open`: look at runs in a browser."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from layerscope.cli.app import app
from layerscope.cli.report import published


@app.command("open")
def open_command(
    runs: list[Path] = typer.Argument(None, help="Folders of runs; one that is running with --live is shown as it goes."),
    atlas: str | None = typer.Option(None, "--atlas", help="Published models to add, e.g. Pythia-410m,bert-base."),
    port: int = typer.Option(0, "--port", help="Port on 127.0.0.1; 0: any free one."),
    browser: bool = typer.Option(True, "--browser/--no-browser", help="Open a browser window."),
) -> None:
    """Write a report of the runs and serve it on this machine only, until Ctrl-C."""
    from layerscope.report.live import page_for, serve

    page = page_for(runs or [], published(atlas, runs))
    with serve(page, port) as (url, wait):
        print(url)
        sys.stdout.flush()
        if browser:
            import webbrowser

            webbrowser.open(url)
        print("Serving on this machine only. Ctrl-C ends it.", file=sys.stderr)
        wait()
