"""`layerscope recipe`: several studies from one file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import words


@app.command("recipe")
def recipe_command(
    recipe: str = typer.Argument(..., help="`paper` (the paper's experiments on its models), or a .yaml file."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the studies. (default: runs/RECIPE)"),
    estimate: bool = typer.Option(False, "--estimate", help="Say what it will take on this machine, and stop."),
    only: str | None = typer.Option(None, "--only", help="Comma-separated names of steps."),
    device: str | None = shared.DEVICE,
    offline: bool = shared.OFFLINE,
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Run several studies; what they will take is said first. The same command again goes on where it stopped."""
    from dataclasses import asdict, replace

    from layerscope.store.atomic import plain
    from layerscope.studies.recipes.estimate import estimate as estimated
    from layerscope.studies.recipes.estimate import measure_machine
    from layerscope.studies.recipes.read import read_recipe
    from layerscope.studies.recipes.run import chosen_steps, run_recipe
    from layerscope.studies.recipes.terminal import print_estimate, print_outcome

    held = read_recipe(recipe)
    steps = chosen_steps(held, words(only))
    held = replace(held, steps=steps)
    silent = quiet or as_json
    if estimate or not silent:
        dtypes = {str(step.settings["dtype"]) for step in steps}
        machine = measure_machine(device, dtypes, {int(step.settings["max_length"]) for step in steps})
        costs = estimated(held, machine)
        if estimate and as_json:
            print(json.dumps(plain({"device": machine.device, "steps": [asdict(cost) for cost in costs]}), indent=2))
            return
        print_estimate(held, machine, costs, to_stderr=not estimate)
        if estimate:
            return
    folder = out or Path("runs") / held.name
    outcomes = run_recipe(
        held,
        folder,
        device=device,
        offline=offline,
        progress=False if silent else None,
        tell=(lambda outcome: None) if silent else print_outcome,
    )
    if as_json:
        print(json.dumps(plain([vars(outcome) for outcome in outcomes]), indent=2, ensure_ascii=False))
    failed = [outcome.step for outcome in outcomes if outcome.status != "complete"]
    if failed:
        print(
            f"{len(failed)} of {len(outcomes)} steps failed ({', '.join(failed)}); the same command tries them again.",
            file=sys.stderr,
        )
        raise typer.Exit(2)
