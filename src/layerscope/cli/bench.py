"""`layerscope bench`: an exported folder against the whole model."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import whole_numbers


@app.command("bench")
def bench_command(
    folder: Path = typer.Argument(..., help="Exported folder (or any sentence-transformers folder)."),
    against: str = typer.Option(..., "--against", help="Model to compare with: catalogue name, hub id or folder."),
    lengths: str = typer.Option("32,128", "--lengths", help="Tokens per text, comma-separated."),
    texts: int = typer.Option(32, "--texts", help="Texts per measurement."),
    rounds: int = typer.Option(3, "--rounds", help="Measurements of each, by turns."),
    batch_size: int = typer.Option(16, "--batch-size", help="Texts per batch."),
    threads: int | None = typer.Option(None, "--threads", help="CPU threads. (default: torch's)"),
    offline: bool = shared.OFFLINE,
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Measure throughput, latency, memory and size of a folder and a model, side by side on the CPU."""
    from layerscope.exporting.bench import DEFAULT_LENGTHS, bench, print_bench

    wanted = whole_numbers(lengths, "lengths") or list(DEFAULT_LENGTHS)
    found = bench(
        folder, against, lengths=wanted, texts=texts, rounds=rounds, batch_size=batch_size, threads=threads, offline=offline
    )
    if as_json:
        print(json.dumps(found.as_dict(), indent=2))
    else:
        print_bench(found)
