"""`layerscope evaluate`: score every layer and readout on labelled tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import default_folder, readout_names, size, words


@app.command("evaluate")
def evaluate_command(
    model: str = shared.MODEL,
    tasks: str = typer.Option("small", "--tasks", "-t", help="paper (its 32), small (4 quick ones), or mteb task names."),
    layers: str | None = typer.Option(None, "--layers", help="e.g. 0,5,-1. (default: every layer)"),
    readouts: list[str] = typer.Option(
        [],
        "--readouts",
        help="all, TEMPLATE/all, or template/pooling/norm/sink/centering,…; may be repeated. (default: the paper's)",
    ),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Folder with <Task>/<split>.jsonl.gz in MTEB's columns."),
    limit: int | None = typer.Option(None, "--limit", "-n", help="Score a random part of N items of each task."),
    max_length: int = typer.Option(256, "--max-length", help="Cut texts to this many tokens."),
    seed: int = typer.Option(0, "--seed", help="Seed of --limit and of the intervals."),
    workers: int | None = typer.Option(None, "--workers", help="Scoring processes; 0: in this one. (default: one per core)"),
    store_budget: str = typer.Option("10GB", "--store-budget", help="Most disk the embedding store may take."),
    store_dtype: str = typer.Option("float32", "--store-dtype", help="float32, or float16 for half the disk."),
    normalize: bool | None = typer.Option(
        None, "--normalize/--no-normalize", help="Scale vectors to length 1. (default: as the model's own pipeline does)"
    ),
    device: str | None = shared.DEVICE,
    device_map: str | None = shared.DEVICE_MAP,
    dtype: str = shared.DTYPE,
    revision: str | None = shared.REVISION,
    family: str | None = shared.FAMILY,
    bidirectional: bool = shared.BIDIRECTIONAL,
    adapter: list[str] = shared.ADAPTER,
    batch_size: int | None = shared.BATCH_SIZE,
    engine: str = shared.ENGINE,
    address: str | None = shared.ADDRESS,
    engine_workers: int | None = shared.ENGINE_WORKERS_ONLY,
    gpus_per_worker: float | None = shared.GPUS_PER_WORKER,
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the run. (default: runs/MODEL--TASKS)"),
    offline: bool = shared.OFFLINE,
    overwrite: bool = shared.OVERWRITE,
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Score every layer on MTEB tasks, encoding each distinct text once. The same command again resumes."""
    from layerscope.cli.options import whole_numbers
    from layerscope.engines import open_engine
    from layerscope.evaluation.job import evaluate
    from layerscope.report.sections.evaluation import print_evaluation
    from layerscope.store.atomic import plain

    folder = out or default_folder(model, tasks)
    with open_engine(engine, address, engine_workers, gpus_per_worker) as used:
        run = evaluate(
            model,
            words(tasks) or [],
            out=folder,
            layers=whole_numbers(layers, "layers"),
            readouts=readout_names(readouts),
            data_dir=data_dir,
            limit=limit,
            max_length=max_length,
            seed=seed,
            workers=workers,
            batch_size=batch_size,
            store_budget=size(store_budget),
            store_dtype=store_dtype,
            normalize=normalize,
            offline=offline,
            overwrite=overwrite,
            progress=False if quiet or as_json else None,
            engine=used,
            model_options={
                "dtype": dtype,
                "device": device,
                "device_map": device_map,
                "revision": revision,
                "family": family,
                "bidirectional": bidirectional,
                "adapters": tuple(adapter),
            },
        )
    if as_json:
        print(json.dumps(plain(run.summary()), indent=2, ensure_ascii=False))
    elif not quiet:
        print_evaluation(run)
        print(f"Written to {folder}: scores.csv, gains.csv (and .parquet), mteb/, manifest.json", file=sys.stderr)
    if run.failed:
        raise typer.Exit(2)
