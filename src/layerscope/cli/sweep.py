"""`layerscope sweep`: many models, checkpoints and corpora from one file. `layerscope recipe`: such plans in the package."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, option, parse_list


@command("sweep", "layerscope sweep sweep.yaml --dry-run")
def sweep_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    file: Path = typer.Argument(..., help="YAML file with models, corpora, settings and steps (see docs/clusters.md)."),
    out: Path | None = shared.out_option("Folder of the sweep. (default: the file's, or runs/FILE)"),
    dry_run: bool = option(False, panel=DATA, help="List the steps, and which are finished, and stop."),
) -> None:
    """Profile (and score) many models on many corpora.

    Model options are for every model of the file that does not set its own. Run the same command again to resume.
    """
    from layerscope.sweeps.run import sweep
    from layerscope.sweeps.terminal import print_plan

    done = sweep(file, out=out, dry_run=dry_run, **shared.as_arguments(loading, running, output))
    if output.as_json or not dry_run:
        output.show_run(done, f"layerscope report {shared.shell_quote(done.path)}", also="a folder per step")
    elif not output.quiet:
        print_plan(done)
        shared.next_step(f"layerscope sweep {shared.shell_quote(file)}")
    if done.failed:
        raise typer.Exit(2)


@command("recipe", "layerscope recipe paper --dry-run")
def recipe_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    recipe: str = typer.Argument(..., help="`paper` (the paper's experiments on its models), or a .yaml file."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the studies. (default: runs/RECIPE)"),
    dry_run: bool = typer.Option(False, "--dry-run", help="List the steps, and which are finished, and stop."),
    small: bool = typer.Option(False, "--small", help="Run the steps on the catalogue's small models (NAME-small)."),
    only: str | None = typer.Option(None, "--only", help="Run only these steps, comma-separated."),
) -> None:
    """Run several studies from one file.

    Run the same command again to resume.
    """
    from layerscope.sweeps.run import sweep
    from layerscope.sweeps.terminal import print_failed, print_plan, print_step

    recipe = f"{recipe}-small" if small else recipe
    ways = shared.as_arguments(loading, running, output)
    told = None if output.silent else print_step
    done = sweep(recipe, out=out, only=parse_list(only), dry_run=dry_run, on_step=told, **ways)
    rows = done.jobs.to_dict(orient="records")
    if dry_run:
        output.show(rows, lambda: print_plan(done), then=f"layerscope recipe {shared.shell_quote(recipe)}")
        return
    rows = [{**row, "step": row["job"], "run": str(done.path / row["job"])} for row in rows]
    output.show(rows, lambda: print_failed(done), then=f"layerscope report {shared.shell_quote(done.path)}")
    if done.failed:
        names = ", ".join(one["job"] for one in done.failed)
        total = len(done.jobs)
        print(f"{len(done.failed)} of {total} steps failed ({names}); the same command tries them again.", file=sys.stderr)
        raise typer.Exit(2)
