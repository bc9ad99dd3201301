"""`layerscope study`: one experiment of the paper on models and texts of your choice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import default_folder
from layerscope.errors import LayerscopeError


@app.command("study")
def study_command(
    name: str = typer.Argument(..., help="Name of a study; `list` shows them all, `list NAME` the options of one."),
    models: list[str] = typer.Argument(None, help="Catalogue names, hub ids or folders; MODEL?dtype=bfloat16 sets one of them."),
    data: str = typer.Option("lee", "--data", "-d", help="Corpus name, .txt/.jsonl/.csv/.parquet file, or hub dataset."),
    column: str | None = typer.Option(None, "--column", help="Column of the texts in a file with several."),
    limit: int | None = typer.Option(None, "--limit", "-n", help="Use the first N usable texts."),
    max_length: int = typer.Option(256, "--max-length", help="Cut texts to this many tokens."),
    final_norm: str = typer.Option("raw", "--final-norm", help="raw, applied or hf."),
    settings: list[str] = typer.Option([], "--set", "-s", help="NAME=VALUE of one of the study's options; repeatable."),
    seed: int = typer.Option(0, "--seed", help="Seed of what is drawn, and of the intervals."),
    device: str | None = shared.DEVICE,
    device_map: str | None = shared.DEVICE_MAP,
    dtype: str = shared.DTYPE,
    family: str | None = shared.FAMILY,
    bidirectional: bool = shared.BIDIRECTIONAL,
    adapter: list[str] = shared.ADAPTER,
    engine: str = shared.ENGINE,
    address: str | None = shared.ADDRESS,
    workers: int | None = shared.ENGINE_WORKERS,
    gpus_per_worker: float | None = shared.GPUS_PER_WORKER,
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the study. (default: runs/NAME--MODELS--DATA)"),
    offline: bool = shared.OFFLINE,
    overwrite: bool = shared.OVERWRITE,
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Run one of the paper's experiments: a table, a figure, and what came out in plain words."""
    from layerscope.store.atomic import plain
    from layerscope.studies.base import get_study
    from layerscope.studies.terminal import print_options, print_studies, print_study, studies_as_dict

    given = list(models or [])
    if name == "list":
        if as_json:
            print(json.dumps(plain(studies_as_dict(given)), indent=2, ensure_ascii=False))
        elif given:
            print_options([get_study(each) for each in given])
        else:
            print_studies()
        return
    from layerscope.engines import open_engine
    from layerscope.studies.run import study

    chosen = get_study(name)
    parts = [name, *(each.partition("?")[0] for each in given[:3]), *([data] if chosen.texts else [])]
    folder = out or default_folder(*parts)
    model_options = {
        "dtype": dtype,
        "device": device,
        "device_map": device_map,
        "family": family,
        "bidirectional": bidirectional,
        "adapters": tuple(adapter),
    }
    with open_engine(engine, address, workers, gpus_per_worker) as used:
        run = study(
            name,
            *given,
            texts=data,
            out=folder,
            column=column,
            limit=limit,
            max_length=max_length,
            final_norm=final_norm,
            seed=seed,
            offline=offline,
            engine=used,
            overwrite=overwrite,
            progress=False if quiet or as_json else None,
            model_options=model_options,
            **read_settings(settings),
        )
    if as_json:
        print(json.dumps(plain(run.summary()), indent=2, ensure_ascii=False))
        return
    if quiet:
        return
    print_study(run)
    print(f"Written to {folder}: study.csv, study.parquet, figure.png, figure.svg, manifest.json", file=sys.stderr)


def read_settings(given: list[str]) -> dict[str, Any]:
    """`name=value` pairs; the study reads the values.

    >>> read_settings(["levels=0,1"])
    {'levels': '0,1'}
    """
    found = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise LayerscopeError(f"--set takes NAME=VALUE, not {pair!r}. `layerscope study list NAME` shows a study's options.")
        found[name.strip()] = value
    return found
