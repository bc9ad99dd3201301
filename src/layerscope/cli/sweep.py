"""`layerscope sweep`: many models, checkpoints, corpora and studies from one file, or from a plan of the package."""

from __future__ import annotations

from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, option, parse_list


@command("sweep", "layerscope sweep paper --dry-run")
def sweep_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    plan: str = typer.Argument(
        ...,
        help="YAML file with models, corpora, settings and steps (see docs/clusters.md), `paper` (the paper's experiments on its "
        "models) or `paper-small` (on the catalogue's).",
    ),
    out: Path | None = shared.out_option("Folder of the sweep. (default: the file's, or runs/PLAN)"),
    only: str | None = option(None, panel=DATA, help="Run only these steps, comma-separated."),
    dry_run: bool = option(False, panel=DATA, help="List the steps, and which are finished, and stop."),
) -> None:
    """Profile and score many models on many corpora, and run studies, from one file.

    Model options are for every model of the file that does not set its own. Run the same command again to resume.
    """
    from layerscope.sweeps.run import sweep
    from layerscope.sweeps.terminal import print_plan

    ways = shared.as_arguments(loading, running, output)
    done = sweep(plan, out=out, only=parse_list(only), dry_run=dry_run, **ways)
    if dry_run:
        output.show(done.summary(), lambda: print_plan(done), then=f"layerscope sweep {shared.shell_quote(plan)}")
    else:
        output.show_run(done, f"layerscope report {shared.shell_quote(done.path)}", also="a folder per step")
    if done.failed:
        raise typer.Exit(2)
