"""`layerscope store` and `layerscope fetch`: what is on this machine, making room, and downloading ahead."""

from __future__ import annotations

import time
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import parse_list
from layerscope.core.formatting import describe_size
from layerscope.core.options import parse_size
from layerscope.errors import LayerscopeError, UnknownNameError


@command("store", "layerscope store --older-than 30")
def store_command(
    prune: str | None = typer.Option(
        None, "--prune", help="Remove the least recently used vectors until this much is left, e.g. 2GB."
    ),
    older_than: float | None = typer.Option(None, "--older-than", help="Remove vectors not used for this many days."),
    as_json: bool = shared.AS_JSON,
) -> None:
    """Show what the embedding store holds, or remove old vectors."""
    from layerscope.cache import cache_dir
    from layerscope.store.embeddings import EmbeddingStore

    store = EmbeddingStore(cache_dir() / "embeddings", None)
    leftovers = store.remove_leftovers()
    removed: list[Any] = []
    if prune is not None or older_than is not None:
        days = None if older_than is None else older_than * 86400
        removed = store.prune(keep_bytes=None if prune is None else parse_size(prune), older_than=days)
    spaces = store.spaces()
    if as_json:
        listed = [{"bytes": s.bytes, "texts": s.texts, "last_used": s.last_used, **s.description} for s in spaces]
        freed = {"sets": len(removed), "bytes": sum(r.bytes for r in removed)}
        shared.print_json({"path": store.root, "bytes": store.size(), "removed": freed, "spaces": listed})
        return
    from layerscope.terminal import Console

    console = Console(highlight=False)
    if leftovers:
        console.print(f"removed {describe_size(leftovers)} that runs which were killed had left")
    if prune is not None or older_than is not None:
        console.print(f"removed {len(removed)} sets of vectors, {describe_size(sum(r.bytes for r in removed))}")
    for info in spaces:
        model = info.description.get("model", {})
        day = time.strftime("%Y-%m-%d", time.localtime(info.last_used))
        name = f"{model.get('architecture')} {str(model.get('weights_sha256'))[:8]}"
        template = str(info.description.get("template"))
        console.print(f"{describe_size(info.bytes):>11}  {info.texts:7} texts  used {day}  {name}  ", end="")
        console.print(repr(template), markup=False)
    console.print(f"{describe_size(store.size()):>11} in all, in {store.root}", soft_wrap=True)
    shared.next_step("layerscope store --prune 2GB")


@command("fetch", "layerscope fetch smollm2-135m lee")
def fetch_command(
    names: list[str] = typer.Argument(None, help="Catalogue names of models, corpora, image sets or tasks, or hub model ids."),
    tasks: str | None = typer.Option(
        None, "--tasks", help="Also fetch the data of these tasks: paper, small, or mteb task names."
    ),
    accept_license: bool = typer.Option(
        False, "--accept-license", help="Accept the licenses of the named items, if their publishers ask for that."
    ),
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
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
    specs = resolve_tasks(parse_list(tasks) or []) if tasks else []
    fetched: dict[str, str] = {}
    for name in names or ():
        path = known[name].fetch(accept_license=accept_license) if name in known else resolve(name).path
        fetched[name] = str(path)
        if not as_json:
            print(f"{name}: {path}")
    for spec in specs:
        fetched[spec.name] = f"{spec.facts()['items']} items"
        if not as_json:
            print(f"{spec.name}: {fetched[spec.name]}")
    if as_json:
        shared.print_json(fetched)
    elif not quiet:
        model = next((name for name in names or () if name in catalogue()), "MODEL")
        shared.next_step(f"layerscope profile {shared.shown(model)} --offline")
