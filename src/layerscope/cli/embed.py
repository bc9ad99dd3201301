"""`layerscope embed`, `search` and `compare`: vectors of many texts, the texts nearest to a
question, and which model to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command, with_flags
from layerscope.cli.shared import CHOICE, DATA, METRICS, RESULT, option


class Texts(shared.CommandOptions):
    """Which texts."""

    column: str | None = option(
        None,
        "--column",
        panel=DATA,
        help="Column of the texts; doc.text: inside an object of JSON.",
    )
    encoding: str | None = option(None, panel=DATA, help=shared.ENCODING_HELP)


class How(Texts):
    """How they are read."""

    layers: str | None = option(
        None,
        panel=METRICS,
        help="Layers, e.g. 10,20,-1, or all. (default: the folder's own, or the last)",
    )
    readout: str | None = option(
        None,
        panel=METRICS,
        help="How a text becomes one vector. (default: the folder's own, or the mean)",
    )
    max_length: int = shared.length_option(None, " (default: 256, or the folder's own)")

    def as_dict(self) -> dict[str, Any]:
        """As the functions of the library take it."""
        numbers = (
            None
            if self.layers in (None, "all")
            else shared.parse_whole_numbers(self.layers, "layers")
        )
        return {**self.given(), "layers": "all" if self.layers == "all" else numbers}

    def flags(self) -> list[str]:
        """The same in another command, which takes one layer: of several, the last."""
        layer = (
            None
            if self.layers is None
            else "-1"
            if self.layers == "all"
            else self.layers.split(",")[-1].strip()
        )
        given = {"--layers": layer, "--readout": self.readout, "--max-length": self.max_length}
        return [
            str(word)
            for flag, value in given.items()
            if value is not None
            for word in (flag, value)
        ]


FOLDER = typer.Argument(
    ..., help="Folder that improve or export wrote, a sentence encoder, or any model."
)


@command("embed", "layerscope embed exports/improved --data lee --out vectors.parquet")
def embed_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    how: How,
    model: str = FOLDER,
    data: str = shared.data_option(..., shared.TEXTS_HELP),
    out: Path = shared.out_option("Parquet file to write.", ...),
) -> None:
    """Write the vectors of any number of texts to a parquet file, beside the columns that they came
    with.

    Run the same command again to resume. Embedding Atlas, LanceDB, DuckDB and FAISS read the file.
    """
    from layerscope.embedding.writing import embed, facts_of

    given = shared.as_arguments(loading, running, output)
    done = embed(model, data, out, **how.as_dict(), **given)
    then = f'layerscope search {shared.shell_quote(model)} "a question" {shared.shell_quote("--data", done, *how.flags())}'
    output.tell({"out": str(done), **facts_of(done)}, done, then)


@command("search", 'layerscope search minilm-l6 "an accident at sea" --data lee')
def search_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Printing,
    how: How,
    model: str = FOLDER,
    query: str = typer.Argument(..., help="What to look for."),
    data: str = shared.data_option(..., f"{shared.TEXTS_HELP} Or a file that embed wrote."),
    top: int = option(5, panel=RESULT, help="How many to show."),
) -> None:
    """Show the texts nearest to a question."""
    from layerscope.embedding.searching import search

    ways = {**loading.as_dict(), **running.as_dict(), "progress": output.progress}
    found = search(model, query, data, top=top, **how.as_dict(), **ways)

    rows = found.to_dict(orient="records")

    def show() -> None:
        from layerscope.terminal import Console, print_frame

        print_frame(Console(highlight=False), rows, ["rank", "cosine", "text"])

    same = shared.shell_quote(
        model, "--data", data, *how.flags(), *(["--column", how.column] if how.column else [])
    )
    output.show(
        rows,
        show,
        then="" if data.endswith(".parquet") else f"layerscope embed {same} --out vectors.parquet",
    )


@command("compare", "layerscope compare smollm2-135m minilm-l6 --data lee")
def compare_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Printing,
    texts: Texts,
    models: list[str] = typer.Argument(
        ..., help="Two models or more: language models, sentence encoders, exported folders."
    ),
    data: str = shared.data_option(..., shared.TEXTS_HELP),
    labels: str | None = option(
        None, panel=DATA, help="Labeled examples: text,label or sentence1,sentence2,label|score."
    ),
    sample: int = option(300, panel=DATA, help="Number of texts, drawn at random."),
    seed: int = shared.seed_option("Seed of the sample.", CHOICE),
) -> None:
    """Compare models and exported folders on your texts: agreement, labels, speed, size, and which
    to use."""
    from layerscope.embedding.comparing import compare_models

    ways = {**loading.as_dict(), **running.as_dict(), "progress": output.progress}
    found = compare_models(
        models,
        data,
        labels=labels,
        sample=sample,
        seed=seed,
        **texts.given(),
        **ways,
    )

    def show() -> None:
        from rich.markup import escape

        from layerscope.terminal import Console, print_frame, print_notes

        console = Console(highlight=False)
        console.print(escape(with_flags(found.verdict, ["compare"])), style="bold")
        print_frame(console, found.table.to_dict(orient="records"), list(found.table.columns))
        print_notes(console, found.notes)

    words = shared.shell_quote(found.pick["model"], "--data", data)
    ready = found.pick["read"] == "as it comes"
    then = (
        f"layerscope embed {words} --out vectors.parquet"
        if ready
        else f"layerscope improve {words} --out better"
    )
    output.show(found.as_dict(), show, then=then)
