"""`layerscope list`: the models, texts, metrics, templates and tasks that have a short name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.errors import UnknownNameError


@dataclass(frozen=True)
class Listed:
    """A table of names: its rows, the columns that a terminal shows, what else can be given, and
    the command that takes such a name."""

    rows: list[dict[str, Any]]
    columns: Sequence[str]
    also: str
    then: str


def _models() -> Listed:
    from layerscope.cache import cache_dir
    from layerscope.models import catalogue
    from layerscope.models.families import FAMILIES

    columns = ("name", "title", "blocks", "width", "license")
    rows = [
        {**{column: getattr(e, column) for column in columns}, "cached": e.is_cached()}
        for e in catalogue().values()
    ]
    also = (
        f"Cache: {cache_dir()}\n"
        "Also: a Hugging Face hub id (org/name or org/name@revision), a folder with safetensors, or a .gguf file.\n"
        f"Families: {', '.join(sorted(FAMILIES))}."
    )
    return Listed(rows, [*columns, "cached"], also, "layerscope profile NAME --data YOUR_TEXTS")


def _corpora() -> Listed:
    from layerscope.data.catalogue import CORPORA

    rows = [
        {"name": entry.name, "texts": entry.summary, "cached": entry.is_cached()}
        for entry in CORPORA.all().values()
    ]
    also = "Also: a .txt (a prompt per line), .jsonl, .csv or .parquet file, or a hub dataset org/name[:config][/split]."
    return Listed(rows, ["name", "texts", "cached"], also, "layerscope profile MODEL --data NAME")


def _metrics() -> Listed:
    from layerscope.metrics import metrics

    infos = {name: metric.info for name, metric in metrics().items()}
    columns = ("title", "unit", "level", "higher_means", "citation", "core")
    rows = [
        {"name": n, **{c: getattr(info, c) for c in columns}, "bounds": info.bounds_text}
        for n, info in infos.items()
    ]
    shown = ["name", "unit", "bounds", "level", "higher_means"]
    return Listed(rows, shown, "", "layerscope profile MODEL --metrics NAME,NAME")


def _templates() -> Listed:
    from layerscope.core.formatting import shorten
    from layerscope.core.templates import TEMPLATES

    rows = [
        {
            "name": template.name,
            "words": shorten(template.pattern, 160),
            "pattern": template.pattern,
            "citation": template.citation,
        }
        for template in TEMPLATES.all().values()
    ]
    also = "Also: a pattern of your own with {text} in it."
    return Listed(rows, ["name", "words"], also, "layerscope improve MODEL --templates NAME,NAME")


def _tasks() -> Listed:
    from layerscope.evaluation.tasks.catalogue import TASKS

    rows = [
        {
            "name": entry.name,
            "kind": entry.task_type,
            "texts": entry.summary,
            "cached": entry.is_cached(),
        }
        for entry in TASKS.all().values()
    ]
    also = "Also: any task or benchmark of mteb, and a file of labeled texts or scored pairs."
    shown = ["name", "kind", "texts", "cached"]
    return Listed(rows, shown, also, "layerscope evaluate MODEL --tasks NAME,NAME")


LISTS: dict[str, Callable[[], Listed]] = {
    "models": _models,
    "corpora": _corpora,
    "metrics": _metrics,
    "templates": _templates,
    "tasks": _tasks,
}


@command("list", "layerscope list models")
def list_command(
    output: shared.Listing,
    what: str = typer.Argument(..., help=f"One of {', '.join(LISTS)}."),
) -> None:
    """List the models, corpora, metrics, templates or tasks that have a short name."""
    from layerscope.terminal import Console, print_frame

    if what not in LISTS:
        raise UnknownNameError("list", what, LISTS)
    listed = LISTS[what]()

    def printed() -> None:
        console = Console(highlight=False)
        if listed.rows:
            print_frame(console, listed.rows, listed.columns)
        if listed.also:
            console.print(listed.also, markup=False, soft_wrap=True)

    output.show(listed.rows, printed, then=listed.then)
