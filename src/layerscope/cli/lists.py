"""`layerscope models`, `corpora`, `images` and `metrics`: what can be named."""

from __future__ import annotations

from typing import Any

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.terminal import headed_table

_LEVELS = {
    "tokens": "from the tokens of each prompt",
    "pooled": "from the pooled vectors of all prompts",
    "views": "from pooled vectors of augmented views",
}


def _print_rows(rows: list[dict[str, Any]], also: str) -> None:
    """Rows as a table, and what else can be given."""
    from layerscope.terminal import Console

    table = headed_table()
    for heading in rows[0] if rows else ():
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(("yes" if value else "no") if isinstance(value, bool) else str(value) for value in row.values()))
    console = Console(highlight=False)
    console.print(table)
    console.print(also, markup=False)


@command("models", "layerscope models")
def models_command(output: shared.Listing) -> None:
    """List the models of the catalogue, and which are cached."""
    from layerscope.cache import cache_dir
    from layerscope.models import catalogue
    from layerscope.models.families import families

    entries = catalogue()
    if output.as_json:
        columns = ("name", "title", "blocks", "width", "license")
        shared.print_json([{**{c: getattr(e, c) for c in columns}, "cached": e.is_cached()} for e in entries.values()])
        return
    from layerscope.terminal import Console

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
    shared.next_step("layerscope profile NAME --data YOUR_TEXTS")


@command("corpora", "layerscope corpora")
def corpora_command(output: shared.Listing) -> None:
    """List the corpora of the catalogue, and which are cached."""
    from layerscope.data import corpora

    rows = [{"name": name, "texts": entry.summary, "cached": entry.is_cached()} for name, entry in corpora().items()]
    also = "Also: a .txt (a prompt per line), .jsonl, .csv or .parquet file, or a hub dataset org/name[:config][/split]."
    output.show(rows, lambda: _print_rows(rows, also), then="layerscope profile MODEL --data NAME")


@command("images", "layerscope images")
def images_command(output: shared.Listing) -> None:
    """List the image sets of the catalogue, and which are cached."""
    from layerscope.data.images.sets import image_sets

    rows = [
        {"name": name, "images": entry.summary, "license": entry.license, "cached": entry.is_cached()}
        for name, entry in image_sets().items()
    ]
    also = "Also: a folder of class folders, a .parquet file with a column of images, or a hub dataset org/name[:config][/split]."
    output.show(rows, lambda: _print_rows(rows, also), then="layerscope probe MODEL --data NAME")


@command("metrics", "layerscope metrics")
def metrics_command(output: shared.Listing) -> None:
    """List the metrics: what a higher value means, their bounds and their source."""
    from layerscope.metrics import metrics

    if output.as_json:
        columns = ("title", "unit", "level", "higher_means", "citation", "core")
        rows = [
            {"name": n, **{c: getattr(m.info, c) for c in columns}, "bounds": m.info.bounds_text} for n, m in metrics().items()
        ]
        shared.print_json(rows)
        return
    from layerscope.terminal import Console

    console = Console(highlight=False)
    for name, metric in metrics().items():
        info = metric.info
        mark = " · one of the paper's seven" if info.core else ""
        console.print(f"[bold]{name}[/]  {info.unit}, {info.bounds_text} · {_LEVELS[info.level]}{mark}")
        console.print(f"    higher: {info.higher_means}. [dim]{info.citation}[/]")
    shared.next_step("layerscope profile MODEL --metrics NAME,NAME")
