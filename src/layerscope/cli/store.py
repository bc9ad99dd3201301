"""`layerscope store`: what the embedding store holds, and making room in it."""

from __future__ import annotations

import time

import typer
from rich.console import Console

from layerscope.cli.app import app
from layerscope.cli.options import size


@app.command("store")
def store_command(
    prune: str | None = typer.Option(None, "--prune", help="Remove what was used least recently until this much is left: 2GB."),
    older_than: float | None = typer.Option(None, "--older-than", help="Remove vectors not used for this many days."),
) -> None:
    """Show what the embedding store holds; remove what is no longer needed."""
    from layerscope.cache import cache_dir
    from layerscope.store.embeddings import EmbeddingStore

    store = EmbeddingStore(cache_dir() / "embeddings", None)
    console = Console(highlight=False)
    if prune is not None or older_than is not None:
        days = None if older_than is None else older_than * 86400
        removed = store.prune(keep_bytes=None if prune is None else size(prune), older_than=days)
        console.print(f"removed {len(removed)} sets of vectors, {sum(r.bytes for r in removed) / 2**20:.0f} MB")
    for info in store.spaces():
        model = info.description.get("model", {})
        day = time.strftime("%Y-%m-%d", time.localtime(info.last_used))
        name = f"{model.get('architecture')} {str(model.get('weights_sha256'))[:8]}"
        template = str(info.description.get("template"))
        console.print(f"{info.bytes / 2**20:8.0f} MB  {info.texts:7} texts  used {day}  {name}  ", end="")
        console.print(repr(template), markup=False)
    console.print(f"{store.size() / 2**20:8.0f} MB in all, in {store.root}", soft_wrap=True)
