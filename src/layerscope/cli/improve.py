"""`layerscope improve`: from a model and your texts to a better embedding model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from layerscope.cli import shared
from layerscope.cli.app import command


@command(
    "improve",
    shared.START,
    "layerscope improve smollm2-135m --data lee --out exports/improved",
    shared.RUN,
)
def improve_command(
    context: typer.Context,
    model: shared.Model,
    data: shared.Data,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write.")],
    column: shared.Column = None,
    queries: Annotated[str | None, typer.Option(help="Questions that should find texts.")] = None,
    pairs: Annotated[str | None, typer.Option(help="File: query,document[,score].")] = None,
    labels: shared.Labels = None,
    sample: Annotated[int, typer.Option(help="Texts to judge on.")] = 1000,
    max_length: shared.MaxLength = 256,
    judge: Annotated[str, typer.Option(help="Encoder that ranks.")] = "minilm-l6",
    budget: Annotated[
        float | None, typer.Option(help="Share of the baseline's cost, e.g. 0.3.")
    ] = None,
    keep: Annotated[float | None, typer.Option(help="Agreement to keep, e.g. 0.97.")] = None,
    servers: Annotated[
        str | None,
        typer.Option("--for", callback=shared.parse_list, help="Servers to fit, e.g. tei,vllm."),
    ] = None,
    templates: Annotated[
        str | None, typer.Option(callback=shared.parse_list, help="Templates, e.g. one-word.")
    ] = None,
    train: Annotated[bool, shared.flag("--train", "Train the remaining blocks.")] = False,
    no_texts: shared.NoTexts = False,
) -> None:
    """Make an encoder faster, or a language model embed better, on your texts; export it.

    The result is a sentence-transformers folder. Labels are not needed.
    """
    from layerscope.core.runs import view
    from layerscope.improving import improve

    result = improve(model, data, out=out, **shared.keywords(context, "model", "data", "out"))
    next_step = f"layerscope report {shared.shell_quote(out)} --out report.html"
    if queries is not None:
        next_step = shared.shell_quote("layerscope", "search", out, "a question", "--data", data)
    shared.show(
        context,
        result.summary(),
        lambda: view(result.kind, "print")(result),
        next_step,
        written=str(out),
    )
