"""`layerscope models`: the catalogue, and what is on this machine."""

from __future__ import annotations

import json

import typer
from rich.console import Console

from layerscope.cli.app import app


@app.command("models")
def models_command(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """List the models with a short name, and which are on this machine."""
    from layerscope.cache import cache_dir
    from layerscope.models import catalogue
    from layerscope.models.families import families

    entries = catalogue()
    if as_json:
        rows = [
            {
                "name": e.name,
                "title": e.title,
                "blocks": e.blocks,
                "width": e.width,
                "license": e.license,
                "cached": e.is_cached(),
            }
            for n, e in entries.items()
        ]
        print(json.dumps(rows, indent=2))
        return
    console = Console(highlight=False)
    for name, e in entries.items():
        here = "cached" if e.package else "installed"
        cached = f"[green]{here}[/]" if e.is_cached() else "not cached yet"
        console.print(f"[bold]{name}[/]  {e.title}: {e.blocks} blocks, width {e.width}, {e.license} · {cached}")
        if e.summary:
            console.print(f"    [dim]{e.summary}[/]")
    console.print(f"Cache: {cache_dir()}", soft_wrap=True)
    console.print("Also: a Hugging Face hub id (org/name or org/name@revision), a folder with safetensors, or a .gguf file.")
    console.print(f"Families: {', '.join(sorted(families()))}.")
