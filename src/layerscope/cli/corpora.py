"""`layerscope corpora`: texts that can be named instead of given as a file."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from layerscope.cli.app import app


@app.command("corpora")
def corpora_command() -> None:
    """List the corpora that can be named, and which are cached."""
    from layerscope.data import corpora

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "texts", "cached"):
        table.add_column(heading, overflow="fold")
    for name, entry in corpora().items():
        table.add_row(name, entry.summary, "yes" if entry.is_cached() else "no")
    console = Console()
    console.print(table)
    also = "Also: a .txt (a prompt per line), .jsonl, .csv or .parquet file, or a hub dataset org/name[:config][/split]."
    console.print(also, markup=False)
