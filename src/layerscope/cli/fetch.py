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
) -> None:
    """Download models, corpora and tasks now, so that later runs need no network."""
    from layerscope.data import corpora, fetch_corpus
    from layerscope.data.images.sets import image_sets
    from layerscope.evaluation.tasks import catalogued_tasks, fetch_task, resolve_tasks
    from layerscope.models import catalogue, fetch
    from layerscope.models.source import resolve

    if not names and tasks is None:
        raise LayerscopeError("name a model, a corpus or a task to fetch, or give --tasks.")
    known = {*catalogue(), *corpora(), *catalogued_tasks(), *image_sets()}
    for name in names or ():  # all names are checked before the first download
        if name not in known and "/" not in name:
            raise UnknownNameError("model, corpus, image set or task", name, known)
    specs = resolve_tasks(words(tasks) or []) if tasks else []
    for name in names or ():
        if name in corpora():
            path = fetch_corpus(name)
        elif name in image_sets():
            path = image_sets()[name].fetch()
        elif name in catalogue():
            path = fetch(name)
        elif name in catalogued_tasks():
            path = fetch_task(name)
        else:
            path = resolve(name).path
        print(f"{name}: {path}")
    for spec in specs:
        print(f"{spec.name}: {spec.facts()['items']} items")
