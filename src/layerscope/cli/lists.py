"""`layerscope models`, `corpora` and `metrics`: what can be named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from layerscope.cli import shared
from layerscope.cli.app import command

_LEVELS = {
    "tokens": "from the tokens of each prompt",
    "pooled": "from the pooled vectors of all prompts",
    "views": "from pooled vectors of augmented views",
}


def _print(entries: Iterable[tuple[str, str, str]], also: str = "") -> None:
    """Names with what to know of each, in a line and a second one, and what else can be given."""
    from rich.markup import escape

    from layerscope.terminal import Console

    console = Console(highlight=False)
    for name, facts, more in entries:
        console.print(f"[bold]{escape(name)}[/]  {escape(facts)}")
        if more:
            console.print(f"    [dim]{escape(more)}[/]")
    if also:
        console.print(also, markup=False, soft_wrap=True)


def _here(entry: Any) -> str:
    return "cached" if entry.is_cached() else "not cached yet"


@command("models", "layerscope models")
def models_command(output: shared.Listing) -> None:
    """List the models with a short name, and which are cached."""
    from layerscope.cache import cache_dir
    from layerscope.models import catalogue
    from layerscope.models.families import FAMILIES

    columns, entries = ("name", "title", "blocks", "width", "license"), catalogue().values()
    rows = [
        {**{column: getattr(e, column) for column in columns}, "cached": e.is_cached()}
        for e in entries
    ]
    also = (
        f"Cache: {cache_dir()}\n"
        "Also: a Hugging Face hub id (org/name or org/name@revision), a folder with safetensors, or a .gguf file.\n"
        f"Families: {', '.join(sorted(FAMILIES))}."
    )
    told = (
        (
            e.name,
            f"{e.title}: {e.blocks} blocks, width {e.width}, {e.license} · {_here(e)}",
            e.summary,
        )
        for e in entries
    )
    output.show(rows, lambda: _print(told, also), then="layerscope profile NAME --data YOUR_TEXTS")


@command("corpora", "layerscope corpora")
def corpora_command(output: shared.Listing) -> None:
    """List the corpora with a short name, and which are cached."""
    from layerscope.data.catalogue import CORPORA

    entries = CORPORA.all().values()
    rows = [
        {"name": entry.name, "texts": entry.summary, "cached": entry.is_cached()}
        for entry in entries
    ]
    also = "Also: a .txt (a prompt per line), .jsonl, .csv or .parquet file, or a hub dataset org/name[:config][/split]."
    told = ((entry.name, _here(entry), entry.summary) for entry in entries)
    output.show(rows, lambda: _print(told, also), then="layerscope profile MODEL --data NAME")


@command("metrics", "layerscope metrics")
def metrics_command(output: shared.Listing) -> None:
    """List the metrics: what a higher value means, their bounds and their source."""
    from layerscope.metrics import metrics

    infos = {name: metric.info for name, metric in metrics().items()}
    columns = ("title", "unit", "level", "higher_means", "citation", "core")
    rows = [
        {"name": n, **{c: getattr(info, c) for c in columns}, "bounds": info.bounds_text}
        for n, info in infos.items()
    ]
    paper = {True: " · one of the paper's seven", False: ""}
    told = (
        (
            n,
            f"{i.unit}, {i.bounds_text} · {_LEVELS[i.level]}{paper[i.core]}",
            f"higher: {i.higher_means}. {i.citation}",
        )
        for n, i in infos.items()
    )
    output.show(rows, lambda: _print(told), then="layerscope profile MODEL --metrics NAME,NAME")
