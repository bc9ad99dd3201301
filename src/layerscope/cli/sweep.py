"""`layerscope sweep`: many models, checkpoints and corpora from one file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import app


@app.command("sweep")
def sweep_command(
    file: Path = typer.Argument(..., help="YAML file: models, corpora, settings, steps (docs/clusters.md)."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the sweep. (default: the file's, or runs/FILE)"),
    estimate: bool = typer.Option(False, "--estimate", help="Print what it would take, and stop."),
    engine: str = shared.ENGINE,
    address: str | None = shared.ADDRESS,
    workers: int | None = shared.ENGINE_WORKERS,
    gpus_per_worker: float | None = shared.GPUS_PER_WORKER,
    offline: bool = shared.OFFLINE,
    overwrite: bool = shared.OVERWRITE,
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Profile (and score) many models on many corpora. An estimate comes first; the same command again resumes."""
    from layerscope.engines import open_engine
    from layerscope.store.atomic import plain
    from layerscope.sweeps.run import sweep
    from layerscope.sweeps.terminal import print_estimate, print_sweep

    def tell(estimates: Any) -> None:
        if not quiet and not as_json:
            print_estimate(estimates, workers or 1)

    with open_engine(engine, address, workers, gpus_per_worker) as used:
        done = sweep(
            file,
            out=out,
            engine=used,
            estimate_only=estimate,
            offline=offline,
            overwrite=overwrite,
            progress=False if quiet or as_json else None,
            told=tell,
        )
    if as_json:
        print(json.dumps(plain(done.summary()), indent=2, ensure_ascii=False))
    elif not quiet and not estimate:
        print_sweep(done)
        print(f"Written to {done.path}: sweep.csv, sweep.parquet, manifest.json and a folder per step", file=sys.stderr)
    if done.failed:
        raise typer.Exit(2)
