"""`layerscope profile`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, METRICS, MODELS, RESULT, default_folder, option, parse_list, parse_number


@command("profile", "layerscope profile smollm2-135m --data lee --limit 50 --out runs/profile")
def profile_command(
    loading: shared.SafeLoading,
    running: shared.Running,
    output: shared.Output,
    model: str = shared.MODEL,
    data: str = typer.Option(
        "lee",
        "--data",
        "-d",
        rich_help_panel=DATA,
        help=f"{shared.DATA_HELP} For an image model: an image set (`layerscope images`), a folder of class folders, .parquet.",
    ),
    task: str | None = option(
        None,
        "--task",
        panel=DATA,
        help="Use the texts of this task instead of --data (a name as for `evaluate --tasks`).",
    ),
    data_dir: Path | None = option(None, "--data-dir", panel=DATA, help=f"With --task. {shared.DATA_DIR_HELP}"),
    split: str | None = option(None, "--split", panel=DATA, help="Split of the images, such as test. (default: the first)"),
    column: str | None = option(None, "--column", panel=DATA, help="Column of the texts or images, if the file has several."),
    text_filter: str | None = option(
        None,
        "--text-filter",
        panel=DATA,
        help="Which texts to use: paper (no headings, at least 30 words), released (no headings, at least 10 characters) "
        "or none (all).",
    ),
    limit: int | None = typer.Option(None, "--limit", "-n", rich_help_panel=DATA, help="Use the first N usable texts or images."),
    max_length: int | None = option(None, "--max-length", panel=DATA, help=shared.MAX_LENGTH_HELP + " (default: 256)"),
    tokens: str | None = option(None, "--tokens", panel=DATA, help="Tokens of an image to read: patches (default) or all."),
    image_pooling: str | None = option(
        None, "--image-pooling", panel=DATA, help="Vector of an image: mean (of its tokens; default) or class (its class token)."
    ),
    attention: str | None = option(
        None, "--attention", panel=MODELS, help="Attention mask of AIM models: bidirectional (default), causal or prefix:N."
    ),
    metrics: str | None = typer.Option(
        None, "--metrics", "-m", rich_help_panel=METRICS, help="Comma-separated names, `paper` or `all`. (default: all)"
    ),
    sites: str | None = option(
        None, "--sites", panel=METRICS, help="Where to read states, e.g. embed,block.*.attn. (default: embed,block.*)"
    ),
    final_norm: str | None = option(None, "--final-norm", panel=METRICS, help=f"{shared.FINAL_NORM_HELP} (default: applied)"),
    alpha: str | None = option(None, "--alpha", panel=METRICS, help="Order of the entropy, a number >= 0 or inf. (default: 1)"),
    rows: str | None = option(
        None,
        "--rows",
        panel=METRICS,
        help="How token states are prepared: raw, unit (length 1), centered or centered-unit (default).",
    ),
    entropy: str | None = option(
        None, "--entropy", panel=METRICS, help="exact, or approximate for prompts of at least 256 tokens (faster on a GPU)."
    ),
    views: int | None = option(None, "--views", panel=METRICS, help="Augmented views per text, 2 to 16. (default: 4)"),
    augmenter: str | None = option(None, "--augmenter", panel=METRICS, help="Library that makes the views: builtin or nlpaug."),
    permutations: int | None = option(
        None, "--permutations", panel=METRICS, help="Permutations for the metric DiME. (default: 10)"
    ),
    seed: int = option(0, "--seed", panel=METRICS, help="Seed of views, permutations and intervals."),
    preset: str = option(
        "default", "--preset", panel=METRICS, help="Conventions: default, paper (as printed) or released (the authors' code)."
    ),
    out: Path | None = typer.Option(
        None,
        "--out",
        "-o",
        rich_help_panel=RESULT,
        help="Folder of the run. (default: runs/MODEL--DATA--NORM, --nN with --limit)",
    ),
    live: bool = option(False, "--live", panel=RESULT, help="Write a page with the results so far to RUN/live.html."),
) -> None:
    """Measure every layer of a model on texts or images, without labels.

    It takes one pass, and one more per augmented view. Run the same command again to resume.
    """
    from layerscope.profiling import PRESETS, profile

    if task is not None:
        refuse_with_task(data, split, column, text_filter)
    norm = final_norm or PRESETS.get(preset, {}).get("final_norm", "applied")
    folder = out or default_folder(model, task or data, norm, limit=limit)
    model_options = loading.as_dict() | ({} if attention is None else {"attention": attention})
    if live and not output.quiet:
        print(f"Open {(folder / 'live.html').absolute()} to watch the run.", file=sys.stderr)
    items: Any = data
    if task is not None:
        from layerscope.evaluation.task_metrics import task_corpus

        items, limit = task_corpus(task, limit=limit, seed=seed, data_dir=data_dir, offline=running.offline), None
    with running.open() as engine:
        run = profile(
            model,
            items,
            out=folder,
            metrics=parse_list(metrics),
            sites=parse_list(sites),
            final_norm=final_norm,
            alpha=parse_number(alpha, "alpha"),
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
            split=split,
            tokens=tokens,
            image_pooling=image_pooling,
            text_filter=text_filter,
            batch_size=running.batch_size,
            memory=running.memory,
            offline=running.offline,
            overwrite=output.overwrite,
            progress=output.progress,
            live=live,
            engine=engine,
            model_options=model_options,
        )
    from layerscope.core.runs import view

    output.show(
        run.summary(),
        lambda: view("profile", "print")(run),
        f"{folder}: profile.csv, profile.parquet, prompts.parquet, manifest.json",
        f"layerscope select {shared.shown(folder)}",
    )


def refuse_with_task(data: str, *others: str | None) -> None:
    """A task has texts of its own."""
    from layerscope.errors import LayerscopeError

    if data != "lee" or any(other is not None for other in others):
        raise LayerscopeError("--task takes the task's own texts: leave out --data, --split, --column and --text-filter.")
