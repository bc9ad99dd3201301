"""`layerscope compare`, `embed` and `search`: which model to use, vectors of many texts, and the
texts nearest to a question."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command

Folder = Annotated[
    str, typer.Argument(help="Folder of improve or export, a sentence encoder, or any model.")
]


def _layers(text: str | None) -> Any:
    return text if text == "all" else shared.parse_layers(text)


Layers = Annotated[
    str | None,
    typer.Option(callback=_layers, help="Layers, e.g. 10,-1, or all. (default: its own)"),
]
Readout = Annotated[
    str | None, typer.Option(help="Way from a text to a vector. (default: its own, or mean)")
]
MaxLength = Annotated[
    int | None, typer.Option(help="Tokens read of each text. (default: its own, or 256)")
]


@command(
    "compare",
    shared.START,
    "layerscope compare smollm2-135m minilm-l6 --data lee",
    shared.LOOKUP,
)
def compare_command(
    context: typer.Context,
    models: Annotated[
        list[str], typer.Argument(help="Two models or more: names, hub ids or folders.")
    ],
    data: shared.Data,
    column: shared.Column = None,
    labels: shared.Labels = None,
    sample: Annotated[int, typer.Option(help="Number of texts, drawn at random.")] = 300,
) -> None:
    """Compare models and exported folders on your texts: agreement, labels, speed, size, and which
    to use."""
    from layerscope.embedding.comparing import compare

    comparison = compare(models, data, **shared.keywords(context, "models", "data"))

    def print_comparison() -> None:
        from rich.markup import escape

        from layerscope.terminal import Console, print_frame, print_notes

        console = Console(highlight=False)
        console.print(escape(comparison.verdict), style="bold")
        rows = comparison.table.to_dict(orient="records")
        print_frame(console, rows, list(comparison.table.columns))
        print_notes(console, comparison.notes)

    words = shared.shell_quote(comparison.pick["model"], "--data", data)
    if comparison.pick["read"] == "as it comes":
        next_step = f"layerscope embed {words} --out vectors.parquet"
    else:
        next_step = f"layerscope improve {words} --out better"
    shared.show(context, comparison.as_dict(), print_comparison, next_step)


@command(
    "embed",
    shared.START,
    "layerscope embed exports/improved --data lee --out vectors.parquet",
    shared.RUN,
)
def embed_command(
    context: typer.Context,
    model: Folder,
    data: shared.Data,
    out: shared.Out,
    column: shared.Column = None,
    layers: Layers = None,
    readout: Readout = None,
    max_length: MaxLength = None,
) -> None:
    """Write the vectors of any number of texts to a parquet file, beside the columns that they came
    with.

    Run the same command again to resume. Embedding Atlas, LanceDB, DuckDB and FAISS read the file.
    """
    from layerscope.embedding.writing import embed, facts_of

    file = embed(model, data, out, **shared.keywords(context, "model", "data", "out"))
    words = ["layerscope", "search", model, "a question", "--data", str(file)]
    next_step = shared.shell_quote(*words, *_flags(layers, readout, max_length))
    shared.show(context, {"out": str(file), **facts_of(file)}, lambda: print(file), next_step)


@command(
    "search",
    shared.START,
    'layerscope search minilm-l6 "an accident at sea" --data lee',
    shared.LOOKUP,
)
def search_command(
    context: typer.Context,
    model: Folder,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    data: shared.Data,
    column: shared.Column = None,
    layers: Layers = None,
    readout: Readout = None,
    max_length: MaxLength = None,
    top: Annotated[int, typer.Option(help="How many to show.")] = 5,
) -> None:
    """Show the texts nearest to a question. The data may be a file that embed wrote."""
    from layerscope.embedding.searching import search

    settings = shared.keywords(context, "model", "query", "data")
    rows = search(model, query, data, **settings).to_dict(orient="records")

    def print_rows() -> None:
        from layerscope.terminal import Console, print_frame

        print_frame(Console(highlight=False), rows, ["rank", "cosine", "text"])

    flags = _flags(layers, readout, max_length)
    if data.endswith(".parquet"):
        words = ["layerscope", "search", model, query, "--data", data, *flags, "--top", 4 * top]
    else:
        words = ["layerscope", "embed", model, "--data", data, *flags]
        words += ["--column", column] if column else []
        words += ["--out", "vectors.parquet"]
    shared.show(context, rows, print_rows, shared.shell_quote(*words))


def _flags(layers: Any, readout: str | None, max_length: int | None) -> list[Any]:
    """Return the same options for a command that takes one layer: of several, the last."""
    layer = -1 if layers == "all" else layers and layers[-1]
    values = {"--layers": layer, "--readout": readout, "--max-length": max_length}
    return [word for name, value in values.items() if value is not None for word in (name, value)]
