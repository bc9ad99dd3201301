"""`layerscope images`: image sets that can be named instead of given as a folder."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from layerscope.cli.app import app


@app.command("images")
def images_command() -> None:
    """List the image sets that can be named, and which are cached."""
    from layerscope.data.images.sets import image_sets

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("name", "images", "license", "cached"):
        table.add_column(heading, overflow="fold")
    for name, entry in image_sets().items():
        table.add_row(name, entry.summary, entry.license, "yes" if entry.is_cached() else "no")
    console = Console()
    console.print(table)
    also = "Also: a folder of class folders, a .parquet file with a column of images, or a hub dataset org/name[:config][/split]."
    console.print(also, markup=False)
