"""`layerscope improve`: from a model and your texts to a better embedding model."""

from __future__ import annotations

from pathlib import Path

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.options import words


@command("improve", "layerscope improve smollm2-135m --data lee --out exports/improved")
def improve_command(
    model: str = shared.MODEL,
    data: str = typer.Option(
        ..., "--data", "-d", help="Your texts: a file (txt, csv, jsonl, parquet …), corpus, or hub dataset."
    ),
    out: Path = typer.Option(..., "--out", "-o", help="Folder to write: load it with SentenceTransformer(FOLDER)."),
    column: str | None = typer.Option(None, "--column", help="The column that holds the texts. (default: found)"),
    labels: str | None = typer.Option(
        None, "--labels", help="A few labeled examples: text,label or sentence1,sentence2,label|score."
    ),
    judge: str = typer.Option(
        "minilm-l6", "--judge", help="The sentence encoder to agree with, or none: the model's own consistency."
    ),
    budget: float | None = typer.Option(None, "--budget", help="Run at most this share of the blocks, e.g. 0.5."),
    max_cost: float = typer.Option(1.0, "--max-cost", help="Most passes per text; 1 keeps to what a standard folder can do."),
    templates: str | None = typer.Option(
        None, "--templates", help="Templates to try. (default: plain, one-word, step-by-step, topic, intent, feeling)"
    ),
    sample: int = typer.Option(1000, "--sample", help="Texts to judge on, drawn at random."),
    max_length: int = typer.Option(256, "--max-length", help="Cut texts to this many tokens."),
    seed: int = typer.Option(0, "--seed", help="Seed of the sample and of resampling."),
    dtype: str = shared.DTYPE,
    device: str | None = shared.DEVICE,
    revision: str | None = shared.REVISION,
    family: str | None = shared.FAMILY,
    bidirectional: bool = shared.BIDIRECTIONAL,
    adapter: list[str] = shared.ADAPTER,
    batch_size: int | None = shared.BATCH_SIZE,
    engine: str = shared.ENGINE,
    address: str | None = shared.ADDRESS,
    offline: bool = shared.OFFLINE,
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace an earlier export in the same folder."),
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Judge every layer and readout on your texts, without labels, and export the best as a sentence-transformers folder."""
    from layerscope.improving import improve

    result = improve(
        model,
        data,
        out=out,
        column=column,
        labels=labels,
        judge=judge,
        budget=budget,
        max_cost=max_cost,
        templates=words(templates),
        sample=sample,
        max_length=max_length,
        seed=seed,
        batch_size=batch_size,
        offline=offline,
        overwrite=overwrite,
        progress=False if quiet else None,
        engine=engine,
        address=address,
        model_options={
            "dtype": dtype,
            "device": device,
            "revision": revision,
            "family": family,
            "bidirectional": bidirectional,
            "adapters": tuple(adapter),
        },
    )
    if as_json:
        print(result.to_json())
    elif not quiet:
        from layerscope.improving.terminal import print_improved

        print_improved(result)
