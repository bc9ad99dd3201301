"""`layerscope evaluate`: score every layer and readout on labeled tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, ENGINES, RESULT, default_folder, option, parse_list, parse_whole_numbers, readout_names
from layerscope.core.options import parse_size


@command("evaluate", "layerscope evaluate smollm2-135m --tasks LeeSimilarity --out runs/scores")
def evaluate_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    model: str = shared.MODEL,
    tasks: str = typer.Option(
        "small", "--tasks", "-t", rich_help_panel=DATA, help="paper (the paper's 32), small (4 quick ones), or mteb task names."
    ),
    layers: str | None = option(None, "--layers", panel=DATA, help="Layers to score, e.g. 0,5,-1. (default: all)"),
    readouts: list[str] = option(
        [],
        "--readouts",
        panel=DATA,
        help="Readouts (how a text becomes one vector): e.g. one-word/last/raw, TEMPLATE/all, or all; repeatable. "
        "(default: plain/mean/applied)",
    ),
    data_dir: Path | None = option(None, "--data-dir", panel=DATA, help=shared.DATA_DIR_HELP),
    limit: int | None = typer.Option(None, "--limit", "-n", rich_help_panel=DATA, help="Score N random items of each task."),
    max_length: int = option(256, "--max-length", panel=DATA, help=shared.MAX_LENGTH_HELP),
    seed: int = option(0, "--seed", panel=DATA, help="Seed of --limit and of the intervals."),
    normalize: bool | None = option(
        None,
        "--normalize/--no-normalize",
        panel=DATA,
        help="Scale vectors to length 1. (default: as in the model's own pipeline)",
    ),
    scoring_workers: int | None = option(
        None,
        "--scoring-workers",
        panel=ENGINES,
        help="Processes that compute scores; 0: the main process. (default: one per core)",
    ),
    store_budget: str = option("10GB", "--store-budget", panel=ENGINES, help="Maximum disk space of the embedding store."),
    store_dtype: str = option("float32", "--store-dtype", panel=ENGINES, help="float32, or float16 for half the disk space."),
    out: Path | None = typer.Option(
        None, "--out", "-o", rich_help_panel=RESULT, help="Folder of the run. (default: runs/MODEL--TASKS)"
    ),
) -> None:
    """Score every layer on MTEB tasks, encoding each distinct text once.

    Run the same command again to resume.
    """
    from layerscope.core.runs import view
    from layerscope.evaluation.job import evaluate

    if running.workers is not None and running.engine == "local":  # what --workers meant until now
        print("layerscope: --workers is now the workers of --engine ray; use --scoring-workers for scoring.", file=sys.stderr)
        scoring_workers, running.workers = scoring_workers if scoring_workers is not None else running.workers, None
    folder = out or default_folder(model, tasks, limit=limit)
    with running.open() as engine:
        run = evaluate(
            model,
            parse_list(tasks) or [],
            out=folder,
            layers=parse_whole_numbers(layers, "layers"),
            readouts=readout_names(readouts),
            data_dir=data_dir,
            limit=limit,
            max_length=max_length,
            seed=seed,
            scoring_workers=scoring_workers,
            batch_size=running.batch_size,
            memory=running.memory,
            store_budget=parse_size(store_budget),
            store_dtype=store_dtype,
            normalize=normalize,
            offline=running.offline,
            overwrite=output.overwrite,
            progress=output.progress,
            engine=engine,
            model_options=loading.as_dict(),
        )
    output.show(
        run.summary(),
        lambda: view("evaluation", "print")(run),
        f"{folder}: scores.csv, gains.csv (and .parquet), mteb/, manifest.json",
        f"layerscope export {shared.shown(model)} --choice {shared.shown(folder)}",
    )
    if run.failed:
        raise typer.Exit(2)
