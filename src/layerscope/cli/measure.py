"""`layerscope profile`, `evaluate` and `probe`: every layer measured on texts, on labeled tasks,
and by classifiers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerscope.cli import shared
from layerscope.cli.app import command


@command(
    "profile",
    shared.START,
    "layerscope profile smollm2-135m --data lee --limit 50 --out runs/profile",
    shared.RUN,
)
def profile_command(
    context: typer.Context,
    model: shared.Model,
    data: shared.Data = "lee",
    column: shared.Column = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Use the first N texts.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens read of a text. (default: 256)")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            "-m",
            callback=shared.parse_list,
            help="Names, paper or all. (default: all)",
        ),
    ] = None,
    sites: Annotated[
        str | None,
        typer.Option(callback=shared.parse_list, help="Places to read, e.g. block.*.attn."),
    ] = None,
    final_norm: Annotated[
        str | None, typer.Option(help="applied, raw, or hf (last layer only).")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Order of the entropy. (default: 1)")] = None,
    rows: Annotated[str | None, typer.Option(help="raw, unit, centered, centered-unit.")] = None,
    views: Annotated[int | None, typer.Option(help="Augmented views, 2 to 16.")] = None,
    map: Annotated[bool, shared.flag("--map", "Keep items as points, for the page.")] = False,
    no_texts: shared.NoTexts = False,
    out: shared.RunFolder = None,
) -> None:
    """Measure every layer of a model on texts, without labels.

    It takes one pass, and one more per augmented view. Run the same command again to resume.
    """
    from layerscope.profiling import profile

    folder = out or shared.default_folder(model, data, final_norm or "applied", limit=limit)
    run = profile(model, data, out=folder, **shared.keywords(context, "model", "data", "out"))
    shared.show_run(context, run, f"layerscope select {shared.shell_quote(folder)}")


def readout_names(texts: list[str] | None) -> list[str] | None:
    """Return the readouts of a repeatable option; a pattern of the user's own may hold commas.

    >>> readout_names(["one-word,echo", "In short, {text}/mean"])
    ['one-word', 'echo', 'In short, {text}/mean']
    """
    names: list[str] = []
    for text in texts or ():
        names += [text] if "{text}" in text else shared.parse_list(text)
    return names or None


@command(
    "evaluate",
    shared.START,
    "layerscope evaluate smollm2-135m --tasks LeeSimilarity --out runs/scores",
    shared.RUN,
)
def evaluate_command(
    context: typer.Context,
    model: shared.Model,
    tasks: Annotated[
        str, typer.Option("--tasks", "-t", help="paper, small, or mteb's names.")
    ] = "small",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with the data: <Task>/<split>.jsonl.gz.")
    ] = None,
    layers: shared.Layers = None,
    readouts: Annotated[
        list[str] | None,
        typer.Option(
            callback=readout_names,
            help="Ways from a text to a vector: NAME,NAME, TEMPLATE/all or all.",
        ),
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", "-n", help="Score N random items of each task.")
    ] = None,
    max_length: shared.MaxLength = 256,
    out: shared.RunFolder = None,
) -> None:
    """Score every layer on MTEB tasks, encoding each distinct text once.

    Run the same command again to resume.
    """
    from layerscope.evaluation.job import evaluate

    folder = out or shared.default_folder(model, tasks, limit=sample)
    settings = shared.keywords(context, "model", "tasks", "out")
    run = evaluate(model, shared.parse_list(tasks), out=folder, **settings)
    next_step = shared.shell_quote("layerscope", "export", model, "--choice", folder)
    shared.show_run(context, run, next_step, also="mteb/" if (folder / "mteb").is_dir() else "")
    if run.failed:
        raise typer.Exit(2)


@command(
    "probe",
    shared.LOOK,
    "layerscope probe smollm2-135m --data TrecQuestions --heads mean --sample 200 --out runs/probe",
    shared.RUN,
)
def probe_command(
    context: typer.Context,
    model: shared.Model,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            "-d",
            callback=shared.check_data,
            help="File with text and label (and split), or a classification task; "
            "images: a set, a folder of class folders or a hub dataset.",
        ),
    ] = None,
    test: Annotated[
        str | None, typer.Option(help="Test data. (default: a split, or a fifth of the data)")
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", "-n", help="Use at most N items of each part.")
    ] = None,
    max_length: shared.MaxLength = 128,
    heads: Annotated[
        str,
        typer.Option(
            "--heads",
            "-p",
            callback=shared.parse_list,
            help="Probes: attention, linear, mean, knn.",
        ),
    ] = "attention",
    layers: shared.Layers = None,
    out: shared.RunFolder = None,
) -> None:
    """Train probes (small classifiers) on the frozen states of all layers at once.

    Run the same command again to resume.
    """
    from layerscope.probing import probe

    folder = out or shared.default_folder(model, data or "data", "probe", limit=sample)
    run = probe(model, data, out=folder, **shared.keywords(context, "model", "data", "out"))
    shared.show_run(context, run, f"layerscope report {shared.shell_quote(folder)}")
