"""`layerscope evaluate`: score every layer and readout on labeled tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerscope.cli import shared
from layerscope.cli.app import command


@command(
    "evaluate",
    shared.START,
    "layerscope evaluate smollm2-135m --tasks LeeSimilarity --out runs/scores",
)
def evaluate_command(
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
        typer.Option(help="Ways from a text to a vector: NAME,NAME, TEMPLATE/all or all."),
    ] = None,
    sample: Annotated[
        int | None, typer.Option("--sample", "-n", help="Score N random items of each task.")
    ] = None,
    max_length: shared.MaxLength = 256,
    out: shared.RunFolder = None,
    option: shared.Settings = None,
    device: shared.Device = None,
    model_option: shared.ModelSettings = None,
    engine: shared.Engine = "local",
    overwrite: shared.Overwrite = False,
    as_json: shared.AsJson = False,
) -> None:
    """Score every layer on MTEB tasks, encoding each distinct text once.

    Run the same command again to resume.
    """
    from layerscope.evaluation.job import evaluate

    settings = shared.keywords(
        option,
        data_dir=data_dir,
        layers=shared.parse_layers(layers),
        readouts=readout_names(readouts or []),
        sample=sample,
        max_length=max_length,
    )
    folder = out or shared.default_folder(model, tasks, limit=sample)
    where = shared.run_keywords(device, model_option, engine, as_json)
    names = shared.parse_list(tasks) or []
    run = evaluate(model, names, out=folder, overwrite=overwrite, **settings, **where)
    next_step = (
        f"layerscope export {shared.shell_quote(model)} --choice {shared.shell_quote(folder)}"
    )
    shared.show_run(as_json, run, next_step, also="mteb/" if (folder / "mteb").is_dir() else "")
    if run.failed:
        raise typer.Exit(2)


def readout_names(texts: list[str]) -> list[str] | None:
    """Return the readouts of a repeatable option; a pattern of the user's own may hold commas.

    >>> readout_names(["one-word,echo", "In short, {text}/mean"])
    ['one-word', 'echo', 'In short, {text}/mean']
    """
    names: list[str] = []
    for text in texts:
        names += [text] if "{text}" in text else shared.parse_list(text) or []
    return names or None
