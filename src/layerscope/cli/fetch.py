"""`layerscope fetch`: put a model or a corpus into the cache."""

from __future__ import annotations

import typer

from layerscope.cli.app import app
from layerscope.errors import UnknownNameError


@app.command("fetch")
def fetch_command(names: list[str] = typer.Argument(..., help="Catalogue names of models or corpora, or hub model ids.")) -> None:
    """Download models and corpora now, so that later runs need no network."""
    from layerscope.data import corpora, fetch_corpus
    from layerscope.models import catalogue, fetch
    from layerscope.models.source import resolve

    known = {*catalogue(), *corpora()}
    for name in names:  # all names are checked before the first download
        if name not in known and "/" not in name:
            raise UnknownNameError("model or corpus", name, known)
    for name in names:
        if name in corpora():
            path = fetch_corpus(name)
        elif name in catalogue():
            path = fetch(name)
        else:
            path = resolve(name).path
        print(f"{name}: {path}")
