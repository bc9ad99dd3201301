"""`layerscope report` and `list`: runs as one page, and everything that has a short name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.errors import UnknownNameError


@dataclass(frozen=True)
class NameList:
    """The rows of a list, and the columns that a terminal shows.

    `hint` says what else can be given, `next_step` is a command that takes such a name.
    """

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    next_step: str
    hint: str = ""


def _models() -> NameList:
    from layerscope.cache import cache_dir
    from layerscope.models import FAMILIES, catalogue

    columns = ("name", "title", "blocks", "width", "license")
    rows = [
        {**_pick(entry, columns), "cached": entry.is_cached()} for entry in catalogue().values()
    ]
    hint = (
        f"Cache: {cache_dir()}\n"
        "Also: a hub id (org/name or org/name@revision), a folder with safetensors, or a .gguf "
        "file.\n"
        f"Families: {', '.join(sorted(FAMILIES))}."
    )
    next_step = "layerscope profile NAME --data YOUR_TEXTS"
    return NameList(rows, (*columns, "cached"), next_step, hint)


def _pick(thing: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    return {column: getattr(thing, column) for column in columns}


def _corpora() -> NameList:
    from layerscope.data.corpus import CORPORA

    rows = [
        {"name": entry.name, "texts": entry.summary, "cached": entry.is_cached()}
        for entry in CORPORA.all().values()
    ]
    hint = "Also: a file or folder of texts, or a hub dataset org/name[:config][/split]."
    next_step = "layerscope profile MODEL --data NAME"
    return NameList(rows, ("name", "texts", "cached"), next_step, hint)


def _metrics() -> NameList:
    from layerscope.metrics import metrics

    columns = ("title", "unit", "level", "higher_means", "citation", "core")
    rows = [
        {"name": name, **_pick(metric.info, columns), "bounds": metric.info.bounds}
        for name, metric in metrics().items()
    ]
    shown = ("name", "unit", "bounds", "level", "higher_means")
    return NameList(rows, shown, "layerscope profile MODEL --metrics NAME,NAME")


def _templates() -> NameList:
    from layerscope.core.options import shorten
    from layerscope.core.templates import TEMPLATES

    columns = ("name", "pattern", "citation")
    rows = [
        {**_pick(template, columns), "words": shorten(template.pattern, 160)}
        for template in TEMPLATES.all().values()
    ]
    hint = "Also: a pattern of your own with {text} in it."
    next_step = "layerscope improve MODEL --templates NAME,NAME"
    return NameList(rows, ("name", "words"), next_step, hint)


def _tasks() -> NameList:
    from layerscope.evaluation.tasks import TASKS

    rows = [
        {
            "name": entry.name,
            "kind": entry.task_type,
            "texts": entry.summary,
            "cached": entry.is_cached(),
        }
        for entry in TASKS.all().values()
    ]
    hint = "Also: any task or benchmark of mteb, and a file of labeled texts or scored pairs."
    next_step = "layerscope evaluate MODEL --tasks NAME,NAME"
    return NameList(rows, ("name", "kind", "texts", "cached"), next_step, hint)


LISTS: dict[str, Callable[[], NameList]] = {
    "models": _models,
    "corpora": _corpora,
    "metrics": _metrics,
    "templates": _templates,
    "tasks": _tasks,
}


@command("report", shared.START, "layerscope report runs/profile runs/scores --out report.html")
def report_command(
    context: typer.Context,
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of finished runs, or files from `select --json`."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path(
        "report.html"
    ),
    no_texts: shared.NoTexts = False,
) -> None:
    """Write one self-contained page about runs: a headline, a map, curves, scores, tables."""
    from layerscope.report.contents import gather
    from layerscope.report.page import check_page_name, write_page

    check_page_name(out)
    report = gather(runs or [], texts=not no_texts)
    target = write_page(report, out)
    labels = [section.label for section in report.sections]
    facts = {"report": target, "headline": report.headline, "runs": labels}
    next_step = f"open {shared.shell_quote(target)} in a browser"
    shared.show(context, facts, lambda: print(target), next_step)


@command("list", shared.KEEP, "layerscope list models")
def list_command(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="LIST", help=f"One of {', '.join(LISTS)}.")],
) -> None:
    """List the models, corpora, metrics, templates or tasks that have a short name."""
    from layerscope.terminal import Console, print_frame

    if name not in LISTS:
        raise UnknownNameError("list", name, LISTS)
    names = LISTS[name]()

    def print_list() -> None:
        console = Console(highlight=False)
        if names.rows:
            print_frame(console, names.rows, names.columns)
        if names.hint:
            console.print(names.hint, markup=False, soft_wrap=True)

    shared.show(context, names.rows, print_list, names.next_step)
