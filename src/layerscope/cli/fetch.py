"""`layerscope fetch`: put models, corpora and tasks into the cache."""

from __future__ import annotations

import typer

from layerscope.cli.app import app
from layerscope.cli.options import words
from layerscope.errors import LayerscopeError, UnknownNameError


@app.command("fetch")
def fetch_command(
    names: list[str] = typer.Argument(None, help="Catalogue names of models, corpora, image sets or tasks, or hub model ids."),
    tasks: str | None = typer.Option(None, "--tasks", help="Also the data of these tasks: paper, small, or mteb task names."),
    accept_license: bool = typer.Option(
        False, "--accept-license", help="Accept the license of what is named, where its publisher asks for that."
    ),
) -> None:
    """Download models, corpora, image sets and tasks now, so that later runs need no network."""
    from layerscope.data import corpora
    from layerscope.data.images.sets import image_sets
    from layerscope.evaluation.tasks import catalogued_tasks, resolve_tasks
    from layerscope.models import catalogue
    from layerscope.models.catalogue import check_zoo
    from layerscope.models.source import resolve

    if not names and tasks is None:
        raise LayerscopeError("name a model, a corpus or a task to fetch, or give --tasks.")
    known = {**catalogued_tasks(), **catalogue(), **image_sets(), **corpora()}
    for name in names or ():  # all names are checked before the first download
        if name not in known and "/" not in name:
            check_zoo(name)
            raise UnknownNameError("model, corpus, image set or task", name, known)
    specs = resolve_tasks(words(tasks) or []) if tasks else []
    for name in names or ():
        path = known[name].fetch(accept_license=accept_license) if name in known else resolve(name).path
        print(f"{name}: {path}")
    for spec in specs:
        print(f"{spec.name}: {spec.facts()['items']} items")
