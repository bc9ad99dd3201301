"""`layerscope probe`: how well classes can be read from every layer's states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import (
    DATA,
    ENGINES,
    METRICS,
    RESULT,
    TRAINING,
    default_folder,
    option,
    parse_list,
    parse_number,
    parse_whole_numbers,
)
from layerscope.core.options import parse_size


@command("probe", "layerscope probe smollm2-135m --data TrecQuestions --heads mean --limit 200 --out runs/probe")
def probe_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    model: str = shared.MODEL,
    data: str | None = typer.Option(
        None,
        "--data",
        "-d",
        rich_help_panel=DATA,
        help="Labeled texts: a .csv, .tsv or .jsonl file with `text` and `label` (and `split`), or a classification task "
        "such as TrecQuestions or one of mteb's. For an image model: digits, fashion-mnist, a folder of class folders, a "
        ".parquet file or a hub dataset.",
    ),
    test: str | None = option(
        None, "--test", panel=DATA, help="Test data. (default: the data's own test split, or a fifth of the data)"
    ),
    limit: int | None = typer.Option(
        None, "--limit", "-n", rich_help_panel=DATA, help="Use at most N training and N test items, stratified by class."
    ),
    max_length: int = option(128, "--max-length", panel=DATA, help=shared.MAX_LENGTH_HELP),
    data_dir: Path | None = option(None, "--data-dir", panel=DATA, help=shared.DATA_DIR_HELP),
    heads: str = typer.Option(
        "attention",
        "--heads",
        "-p",
        rich_help_panel=METRICS,
        help="Kinds of probe, comma-separated: attention, linear, mean, knn.",
    ),
    layers: str | None = option(None, "--layers", panel=METRICS, help="Layers to probe, e.g. 0,5,-1. (default: all)"),
    final_norm: str = option("applied", "--final-norm", panel=METRICS, help=shared.FINAL_NORM_HELP),
    learning_rates: str | None = option(
        None, "--learning-rates", panel=TRAINING, help="Learning rates to try. (default: 0.002,0.01,0.05)"
    ),
    trial: int = option(3, "--trial", panel=TRAINING, help="Epochs for which each learning rate is tried."),
    epochs: int = option(
        15, "--epochs", panel=TRAINING, help="Maximum epochs with the rate that is best on the validation items."
    ),
    patience: int = option(
        5, "--patience", panel=TRAINING, help="Stop a layer after this many epochs without a better validation score."
    ),
    train_batch: int | None = option(
        None, "--train-batch", panel=TRAINING, help="Items per training step. (default: 256, fewer for small data)"
    ),
    seed: int = option(0, "--seed", panel=TRAINING, help="Seed of the split, the initial weights and the order of the items."),
    keep: str = option(
        "auto",
        "--keep",
        panel=ENGINES,
        help="Cache states as float32 or float16 (auto: what fits); none: run the model in every epoch.",
    ),
    budget: str | None = option(
        None, "--budget", panel=ENGINES, help="Maximum memory or disk space for states. (default: 4GB; 60 % of a GPU)"
    ),
    out: Path | None = typer.Option(
        None, "--out", "-o", rich_help_panel=RESULT, help="Folder of the run. (default: runs/MODEL--DATA--probe)"
    ),
) -> None:
    """Train probes (small classifiers) on the frozen states of all layers at once.

    Run the same command again to resume.
    """
    from layerscope.core.runs import view
    from layerscope.probing import probe as run_probes
    from layerscope.probing.training import ProbeRecipe

    rates = [rate for part in parse_list(learning_rates) or [] if (rate := parse_number(part, "learning-rates")) is not None]
    folder = out or default_folder(model, data or "data", "probe", limit=limit)
    with running.open() as engine:
        run = run_probes(
            model,
            data,
            test=test,
            heads=parse_list(heads) or [],
            out=folder,
            layers=parse_whole_numbers(layers, "layers"),
            final_norm=final_norm,  # type: ignore[arg-type]
            limit=limit,
            max_length=max_length,
            learning_rates=rates or ProbeRecipe.learning_rates,
            trial=trial,
            epochs=epochs,
            patience=patience,
            train_batch=train_batch,
            seed=seed,
            keep=keep,
            budget=None if budget is None else parse_size(budget),
            batch_size=running.batch_size,
            memory=running.memory,
            data_dir=data_dir,
            offline=running.offline,
            overwrite=output.overwrite,
            progress=output.progress,
            engine=engine,
            model_options=loading.as_dict(),
        )
    files = "probe.csv, probe.parquet, items.parquet, manifest.json" + (", probe.png" if _drawn(run, folder) else "")
    output.show(
        run.summary(), lambda: view("probe", "print")(run), f"{folder}: {files}", f"layerscope report {shared.shown(folder)}"
    )


def _drawn(run: Any, folder: Path) -> bool:
    """The figure beside the tables, if matplotlib is installed."""
    from layerscope.errors import MissingExtraError
    from layerscope.report.drawing import save_figure

    try:
        save_figure(run.plot(), folder / "probe.png")
    except MissingExtraError:
        return False
    return True
