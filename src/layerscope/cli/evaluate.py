"""`layerscope evaluate`: score every layer and readout on labeled tasks."""

from __future__ import annotations

from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, ENGINES, default_folder, option, parse_list, readout_names
from layerscope.core.options import parse_size


class EvaluateSettings(shared.CommandOptions):
    """What is scored, under the names that `layerscope.evaluate` has for it."""

    layers: str | None = shared.layers_option(DATA, "score")
    readouts: list[str] = option(
        [],
        panel=DATA,
        help="Readouts (how a text becomes one vector): e.g. one-word/last/raw, TEMPLATE/all, or all; repeatable. "
        "(default: plain/mean/applied)",
        read=readout_names,
    )
    data_dir: Path | None = option(None, panel=DATA, help=shared.DATA_DIR_HELP)
    sample: int | None = shared.size_option("Score N random items of each task.")
    max_length: int = shared.length_option(256)
    seed: int = shared.seed_option("Seed of --sample and of the intervals.", DATA)
    scoring: str | None = option(
        None,
        panel=ENGINES,
        help="mteb (its own code) or device (all layers at once on the model's device). (default: device on a GPU, else mteb)",
    )
    scoring_workers: int | None = option(
        None,
        panel=ENGINES,
        help="Processes that compute scores; 0: the main process. (default: one per core)",
    )
    store_size: str = option(
        "10GB", panel=ENGINES, help="Maximum disk space of the embedding store.", read=parse_size
    )


@command("evaluate", "layerscope evaluate smollm2-135m --tasks LeeSimilarity --out runs/scores")
def evaluate_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    settings: EvaluateSettings,
    model: str = shared.MODEL,
    tasks: str = option(
        "small",
        "-t",
        panel=DATA,
        help="paper (the paper's 32), small (4 quick ones), or mteb task names.",
    ),
    out: Path | None = shared.out_option("Folder of the run. (default: runs/MODEL--TASKS)"),
) -> None:
    """Score every layer on MTEB tasks, encoding each distinct text once.

    Run the same command again to resume.
    """
    from layerscope.evaluation.job import evaluate

    folder = out or default_folder(model, tasks, limit=settings.sample)
    ways = shared.as_arguments(loading, running, output)
    run = evaluate(model, parse_list(tasks) or [], out=folder, **settings.given(), **ways)
    then = f"layerscope export {shared.shell_quote(model)} --choice {shared.shell_quote(folder)}"
    output.show_run(run, then, also="mteb/" if (folder / "mteb").is_dir() else "")
    if run.failed:
        raise typer.Exit(2)
