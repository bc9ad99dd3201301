"""`layerscope probe`: how well every layer's states give the classes of labelled items."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import default_folder, real, size, whole_numbers, words


@app.command("probe")
def probe_command(
    model: str = shared.MODEL,
    images: str | None = typer.Option(
        None, "--images", help="digits, fashion-mnist, a folder of class folders, .parquet or hub."
    ),
    texts: str | None = typer.Option(None, "--texts", help="A .csv, .tsv or .jsonl file with `text` and `label` (and `split`)."),
    task: str | None = typer.Option(None, "--task", help="A classification task, such as TrecQuestions or any of mteb's."),
    test: str | None = typer.Option(None, "--test", help="Where the test items are. (default: the data's own, or a fifth of it)"),
    heads: str = typer.Option("attention", "--heads", "-p", help="attention, linear, mean, knn; several with commas."),
    old_heads: str | None = typer.Option(None, "--probe", hidden=True),
    layers: str | None = typer.Option(None, "--layers", help="e.g. 0,5,-1. (default: every layer)"),
    final_norm: str = typer.Option("applied", "--final-norm", help="applied, raw or hf."),
    limit: int | None = typer.Option(None, "--limit", "-n", help="Use at most N training and N test items, drawn by class."),
    max_length: int = typer.Option(128, "--max-length", help="Cut texts to this many tokens."),
    learning_rates: str | None = typer.Option(None, "--learning-rates", help="To choose from. (default: 0.002,0.01,0.05)"),
    trial: int = typer.Option(3, "--trial", help="Epochs that each learning rate is tried for."),
    epochs: int = typer.Option(15, "--epochs", help="Most epochs with the one that was best on the validation items."),
    patience: int = typer.Option(
        5, "--patience", help="Late epochs without a better validation score after which a layer stops."
    ),
    train_batch: int | None = typer.Option(None, "--train-batch", help="Items per training step. (default: 256, fewer of few)"),
    seed: int = typer.Option(0, "--seed", help="Seed of the split, the start and the order of the items."),
    keep: str = typer.Option("auto", "--keep", help="Keep states as float32, float16, or none: run the model in every epoch."),
    budget: str | None = typer.Option(None, "--budget", help="Most memory or disk for states. (default: 4GB; 60 % of a GPU)"),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Folder with <Task>/<split>.jsonl.gz in MTEB's columns."),
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
    workers: int | None = shared.ENGINE_WORKERS,
    gpus_per_worker: float | None = shared.GPUS_PER_WORKER,
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the run. (default: runs/MODEL--DATA--probe)"),
    offline: bool = shared.OFFLINE,
    overwrite: bool = shared.OVERWRITE,
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Train probes on the frozen states of all layers at once. The same command again resumes or returns at once."""
    from layerscope.engines import open_engine
    from layerscope.probing import probe as run_probes
    from layerscope.probing.training import ProbeRecipe
    from layerscope.store.atomic import plain

    if old_heads is not None:
        print("note: --probe is now --heads; the old name goes with the next release.", file=sys.stderr)
        heads = old_heads
    rates = [rate for part in words(learning_rates) or [] if (rate := real(part, "learning-rates")) is not None]
    folder = out or default_folder(model, images or texts or task or "data", "probe")
    with open_engine(engine, address, workers, gpus_per_worker) as used:
        run = run_probes(
            model,
            images=images,
            texts=texts,
            task=task,
            test=test,
            heads=words(heads) or [],
            out=folder,
            layers=whole_numbers(layers, "layers"),
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
            budget=None if budget is None else size(budget),
            batch_size=batch_size,
            data_dir=data_dir,
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
    written = "probe.csv, probe.parquet, items.parquet, manifest.json" + (", probe.png" if _drawn(run, folder) else "")
    if as_json:
        print(json.dumps(plain(run.summary()), indent=2, ensure_ascii=False))
    elif not quiet:
        from layerscope.report.sections.probe import print_probes

        print_probes(run)
        print(f"Written to {folder}: {written}", file=sys.stderr)


def _drawn(run: object, folder: Path) -> bool:
    """The figure beside the tables, where matplotlib is there to draw it."""
    from layerscope.errors import MissingExtraError
    from layerscope.report.drawing import save_figure
    from layerscope.report.sections.probe import plot_probes

    try:
        save_figure(plot_probes([run]), folder / "probe.png")  # type: ignore[list-item]
    except MissingExtraError:
        return False
    return True
