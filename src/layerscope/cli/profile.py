"""`layerscope profile`: the main job."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import default_folder, real, words


@app.command("profile")
def profile_command(
    model: str = shared.MODEL,
    data: str = typer.Option("lee", "--data", "-d", help="Corpus name, .txt/.jsonl/.csv/.parquet file, or hub dataset."),
    images: str | None = typer.Option(
        None, "--images", "-i", help="Of an image model: digits, fashion-mnist, a folder of class folders, .parquet, hub dataset."
    ),
    split: str | None = typer.Option(None, "--split", help="Split of the images, such as test. (default: the first)"),
    tokens: str | None = typer.Option(None, "--tokens", help="Of each image: patches (default), or all (class, registers too)."),
    image_pooling: str | None = typer.Option(None, "--image-pooling", help="What stands for an image: mean (default) or class."),
    attention: str | None = typer.Option(None, "--attention", help="AIM: bidirectional (default), causal or prefix:N."),
    column: str | None = typer.Option(None, "--column", help="Column of the texts or images in a file with several."),
    text_filter: str | None = typer.Option(None, "--text-filter", help="paper (no headings, >= 30 tokens), released or none."),
    limit: int | None = typer.Option(None, "--limit", "-n", help="Use the first N usable texts or images."),
    max_length: int | None = typer.Option(None, "--max-length", help="Cut texts to this many tokens. (default: 256)"),
    metrics: str | None = typer.Option(None, "--metrics", "-m", help="Comma-separated names, `paper` or `all`. (default: all)"),
    sites: str | None = typer.Option(None, "--sites", help="e.g. embed,block.*,block.*.attn. (default: embed,block.*)"),
    final_norm: str | None = typer.Option(None, "--final-norm", help="applied, raw or hf. (default: applied)"),
    alpha: str | None = typer.Option(None, "--alpha", help="Order of the entropy, a number >= 0 or inf. (default: 1)"),
    rows: str | None = typer.Option(None, "--rows", help="Token rows: raw, unit, centered or centered-unit (default)."),
    entropy: str | None = typer.Option(
        None, "--entropy", help="exact, or approximate for prompts of 256 tokens and more (faster on a GPU)."
    ),
    views: int | None = typer.Option(None, "--views", help="Augmented views per text, 2 to 16. (default: 4)"),
    augmenter: str | None = typer.Option(None, "--augmenter", help="builtin or nlpaug."),
    permutations: int | None = typer.Option(None, "--permutations", help="Permutations of DiME. (default: 10)"),
    seed: int = typer.Option(0, "--seed", help="Seed of views, permutations and intervals."),
    preset: str = typer.Option("default", "--preset", help="default, paper (as printed) or released (the authors' code)."),
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
    out: Path | None = typer.Option(None, "--out", "-o", help="Folder of the run. (default: runs/MODEL--DATA--NORM)"),
    live: bool = typer.Option(False, "--live", help="Keep a page of what is known so far: RUN/live.html."),
    offline: bool = shared.OFFLINE,
    overwrite: bool = shared.OVERWRITE,
    trust_remote_code: bool = typer.Option(False, "--trust-remote-code", help="Let the model run its own Python code."),
    allow_pickle: bool = typer.Option(False, "--allow-pickle", help="Let weights be unpickled."),
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Measure every layer of a model on some texts or images, in one pass. The same command again resumes or returns at once."""
    from layerscope.engines import open_engine
    from layerscope.profiling import PRESETS, profile

    folder = out or default_folder(model, images or data, final_norm or PRESETS.get(preset, {}).get("final_norm", "applied"))
    model_options = {
        "dtype": dtype,
        "device": device,
        "device_map": device_map,
        "revision": revision,
        "family": family,
        "bidirectional": bidirectional,
        "adapters": tuple(adapter),
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
    }
    if attention is not None:
        model_options["attention"] = attention
    if live and not quiet:
        print(f"Open {(folder / 'live.html').absolute()} to watch the run.", file=sys.stderr)
    with open_engine(engine, address, workers, gpus_per_worker) as used:
        run = profile(
            model,
            data,
            out=folder,
            metrics=words(metrics),
            sites=words(sites),
            final_norm=final_norm,
            alpha=real(alpha, "alpha"),
            rows=rows,
            entropy=entropy,
            max_length=max_length,
            views=views,
            augmenter=augmenter,
            permutations=permutations,
            seed=seed,
            preset=preset,
            limit=limit,
            column=column,
            images=images,
            split=split,
            tokens=tokens,
            image_pooling=image_pooling,
            text_filter=text_filter,
            batch_size=batch_size,
            offline=offline,
            overwrite=overwrite,
            progress=False if quiet or as_json else None,
            live=live,
            engine=used,
            model_options=model_options,
        )
    if as_json:
        from layerscope.store.atomic import plain

        print(json.dumps(plain(run.summary()), indent=2, ensure_ascii=False))
        return
    if quiet:
        return
    from layerscope.report.sections.profile import print_run

    print_run(run)
    print(f"Written to {folder}: profile.csv, profile.parquet, prompts.parquet, manifest.json", file=sys.stderr)
