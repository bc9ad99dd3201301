"""`layerscope models`, `corpora` and `metrics`: what can be named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerscope.cli import shared
from layerscope.cli.app import command


def _print(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], also: str = "") -> None:
    """Print some columns of what can be named, and what else can be given."""
    from layerscope.terminal import Console, print_frame

    console = Console(highlight=False)
    if rows:
        print_frame(console, rows, columns)
    if also:
        console.print(also, markup=False, soft_wrap=True)


@command("models", "layerscope models")
def models_command(output: shared.Listing) -> None:
    """List the models with a short name, and which are cached."""
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
    shown = [*columns, "cached"]
    output.show(
        rows, lambda: _print(rows, shown, also), then="layerscope profile NAME --data YOUR_TEXTS"
    )


@command("corpora", "layerscope corpora")
def corpora_command(output: shared.Listing) -> None:
    """List the corpora with a short name, and which are cached."""
    from layerscope.data.catalogue import CORPORA

    rows = [
        {"name": entry.name, "texts": entry.summary, "cached": entry.is_cached()}
        for entry in CORPORA.all().values()
    ]
    also = "Also: a .txt (a prompt per line), .jsonl, .csv or .parquet file, or a hub dataset org/name[:config][/split]."
    shown = ["name", "texts", "cached"]
    output.show(
        rows, lambda: _print(rows, shown, also), then="layerscope profile MODEL --data NAME"
    )


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
    shown = ["name", "unit", "bounds", "level", "higher_means"]
    output.show(
        rows, lambda: _print(rows, shown), then="layerscope profile MODEL --metrics NAME,NAME"
    )
