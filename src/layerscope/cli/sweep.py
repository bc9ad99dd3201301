"""`layerscope sweep`: many models, checkpoints and corpora from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, RESULT, option


@command("sweep", "layerscope sweep sweep.yaml --estimate")
def sweep_command(
    running: shared.Cluster,
    output: shared.Output,
    file: Path = typer.Argument(..., help="YAML file: models, corpora, settings, steps (docs/clusters.md)."),
    out: Path | None = typer.Option(
        None, "--out", "-o", rich_help_panel=RESULT, help="Folder of the sweep. (default: the file's, or runs/FILE)"
    ),
    estimate: bool = option(False, "--estimate", panel=DATA, help="Print what it would take, and stop."),
) -> None:
    """Profile (and score) many models on many corpora. An estimate comes first; the same command again resumes."""
    from layerscope.core.runs import view
    from layerscope.sweeps.run import sweep
    from layerscope.sweeps.terminal import print_estimate

    def tell(estimates: Any) -> None:
        if not output.quiet and not output.as_json:
            print_estimate(estimates, running.workers or 1)

    with running.open() as engine:
        done = sweep(
            file,
            out=out,
            engine=engine,
            estimate_only=estimate,
            offline=running.offline,
            overwrite=output.overwrite,
            progress=output.progress,
            on_estimate=tell,
        )
    if output.as_json or not estimate:
        output.show(
            done.summary(),
            lambda: view("sweep", "print")(done),
            f"{done.path}: sweep.csv, sweep.parquet, manifest.json and a folder per step",
            f"layerscope report {shared.shown(done.path)}",
        )
    elif not output.quiet:
        shared.next_step(f"layerscope sweep {shared.shown(file)}")
    if done.failed:
        raise typer.Exit(2)
