"""`layerscope improve`: from a model and your texts to a better embedding model."""

from __future__ import annotations

from pathlib import Path

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import CHOICE, DATA, option, parse_list
from layerscope.core.templates import BUILT_IN


class ImproveSettings(shared.CommandOptions):
    """What is judged and how, under the names that `layerscope.improve` has for it."""

    column: str | None = option(
        None, "--column", panel=DATA, help="Column of the texts. (default: detected)"
    )
    encoding: str | None = option(None, panel=DATA, help=shared.ENCODING_HELP)
    queries: str | None = option(
        None, panel=DATA, help="Questions that should find these texts: improve a search."
    )
    pairs: str | None = option(
        None,
        panel=DATA,
        help="File of queries and documents that belong together, by text or id: query,document[,score].",
    )
    sample: int = option(
        1000, "--sample", panel=DATA, help="Number of texts to judge on, drawn at random."
    )
    max_length: int = shared.length_option(256)
    labels: str | None = option(
        None,
        "--labels",
        panel=CHOICE,
        help="File of a few labeled examples: text,label or sentence1,sentence2,label|score.",
    )
    judge: str = option(
        "minilm-l6",
        "--judge",
        panel=CHOICE,
        help="Sentence encoder that ranks the candidates; none: the model's own consistency.",
    )
    budget: float | None = option(
        None,
        "--budget",
        panel=CHOICE,
        help="Cost at most this share of today's computation per text, e.g. 0.3.",
    )
    keep: float | None = option(
        None,
        "--keep",
        panel=CHOICE,
        help="For a sentence encoder: how well it has to agree with itself as a whole, e.g. 0.97.",
    )
    servers: str | None = option(
        None,
        "--for",
        panel=CHOICE,
        help="Programs that have to open the folder, e.g. tei,vllm: what they cannot read is no candidate.",
        read=parse_list,
    )
    templates: str | None = option(
        None,
        "--templates",
        panel=CHOICE,
        help="Templates (words around a text) to try, comma-separated. "
        f"(default: {', '.join(t.name for t in BUILT_IN if t.tried)}; with --labels all)",
        read=parse_list,
    )
    center_on: str = option(
        "auto",
        "--center-on",
        panel=CHOICE,
        help="Texts that a mean or a head is fitted on: all, sample, or auto (as many as are cheap).",
    )
    time: float | None = option(
        None,
        "--time",
        panel=CHOICE,
        help="Minutes of reading further texts for that fit, instead; with --train, of training too.",
    )
    train: bool = option(
        False,
        "--train",
        panel=CHOICE,
        help="Train the blocks below a head too: half of them, or as many as --budget allows.",
    )
    seed: int = shared.seed_option("Seed of the sample and of resampling.", CHOICE)
    texts: bool = shared.TEXTS


@command("improve", "layerscope improve smollm2-135m --data lee --out exports/improved")
def improve_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    settings: ImproveSettings,
    model: str = shared.MODEL,
    data: str = option(
        ...,
        "--data",
        "--documents",
        "-d",
        panel=DATA,
        help=shared.TEXTS_HELP,
        read=shared.existing_data,
    ),
    out: Path = shared.out_option(
        "Folder to write: load it with SentenceTransformer(FOLDER).", ...
    ),
) -> None:
    """Make a sentence encoder faster, or a language model embed better, on your texts, with or
    without labels; export the model.

    Of an encoder, blocks are left out and the others refitted to do their work as well. Of a
    language model, every layer is judged under several readouts (how a text becomes one vector) and
    through heads (linear maps fitted to your texts), which need no prompt. The result is a
    sentence-transformers folder.
    """
    from layerscope.core.runs import view
    from layerscope.improving import improve

    ways = {
        **shared.as_arguments(loading, running, output),
        "progress": False if output.quiet else None,
    }
    result = improve(model, data, out=out, **settings.given(), **ways)
    then = f"layerscope report {shared.shell_quote(out)} --out report.html"
    if settings.queries is not None:
        then = f'layerscope search {shared.shell_quote(out)} "a question" --data {shared.shell_quote(data)}'
    output.show(result.summary(), lambda: view(result.kind, "print")(result), str(out), then)
