"""`layerscope select`: which layer to read, how sure that is, and what it saves."""

from __future__ import annotations

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import words
from layerscope.errors import LayerscopeError


@app.command("select")
def select_command(
    runs: list[str] = typer.Argument(
        None, metavar="[RUN]...", help="Folder of a profile, an evaluation, or one of each; with --labels also a model."
    ),
    atlas: str | None = typer.Option(None, "--atlas", help="A published model instead; `layerscope atlas models` lists them."),
    rule: str | None = typer.Option(
        None, "--rule", help="evidence, measured, last, fixed_depth[:0.8], lowest_METRIC. (default: measured, else evidence)"
    ),
    labels: str | None = typer.Option(
        None, "--labels", help="csv, tsv or jsonl with text,label or sentence1,sentence2,label|score."
    ),
    readouts: str | None = typer.Option(None, "--readouts", help="With scores or labels: only these readouts."),
    budget: float | None = typer.Option(None, "--budget", help="Run at most this share of the blocks, e.g. 0.5."),
    tolerance: float | None = typer.Option(
        None, "--tolerance", help="Points that may be given up for an earlier layer. (with --budget: 1, or a tie)"
    ),
    seed: int = typer.Option(0, "--seed", help="Seed of resampling and folds."),
    offline: bool = shared.OFFLINE,
    as_json: bool = shared.AS_JSON,
) -> None:
    """Choose the layer to read embeddings from: without labels from a profile, from measured scores, or with a few labels."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from layerscope.selection.choice import Choice
    from layerscope.selection.describe import headline, lines
    from layerscope.selection.select import select

    choice: Choice
    if labels is not None:
        if len(runs or []) != 1 or atlas is not None or rule is not None:
            raise LayerscopeError("--labels takes one model or the folder of one run, without --atlas and --rule.")
        from layerscope.selection.labels import select_with_labels

        choice = select_with_labels(
            runs[0],
            labels,
            readouts=words(readouts),
            seed=seed,
            offline=offline,
            progress=False if as_json else None,
            budget=budget,
            tolerance=tolerance,
        )
    else:
        named = words(readouts) or [None]  # type: ignore[list-item]
        if len(named) > 1:
            raise LayerscopeError("--readouts takes one readout here; several can be compared with --labels.")
        choice = select(*(runs or []), atlas=atlas, rule=rule, readout=named[0], budget=budget, tolerance=tolerance, seed=seed)
    if as_json:
        print(choice.to_json())
        return
    console = Console()
    console.print(escape(headline(choice)), highlight=False, style="bold")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines(choice):
        table.add_row(name, escape(value))
    console.print(table)
