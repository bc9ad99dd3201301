"""`layerscope profile`: every layer measured on texts, without labels."""

from __future__ import annotations

from typing import Annotated

import typer

from layerscope.cli import shared
from layerscope.cli.app import command


@command(
    "profile", shared.START, "layerscope profile smollm2-135m --data lee --limit 50 --out runs/profile"
)  # fmt: skip
def profile_command(
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
        str | None, typer.Option("--metrics", "-m", help="Names, paper or all. (default: all)")
    ] = None,
    sites: Annotated[str | None, typer.Option(help="Places to read, e.g. block.*.attn.")] = None,
    final_norm: Annotated[
        str | None, typer.Option(help="applied, raw, or hf (last layer only).")
    ] = None,
    alpha: Annotated[float | None, typer.Option(help="Order of the entropy. (default: 1)")] = None,
    rows: Annotated[str | None, typer.Option(help="raw, unit, centered, centered-unit.")] = None,
    views: Annotated[int | None, typer.Option(help="Augmented views, 2 to 16.")] = None,
    map: Annotated[bool, shared.flag("--map", "Keep items as points, for the page.")] = False,
    no_texts: shared.NoTexts = False,
    out: shared.RunFolder = None,
    option: shared.Settings = None,
    device: shared.Device = None,
    model_option: shared.ModelSettings = None,
    engine: shared.Engine = "local",
    overwrite: shared.Overwrite = False,
    as_json: shared.AsJson = False,
) -> None:
    """Measure every layer of a model on texts, without labels.

    It takes one pass, and one more per augmented view. Run the same command again to resume.
    """
    from layerscope.profiling import profile

    settings = shared.keywords(
        option,
        column=column,
        limit=limit,
        max_length=max_length,
        metrics=shared.parse_list(metrics),
        sites=shared.parse_list(sites),
        final_norm=final_norm,
        alpha=alpha,
        rows=rows,
        views=views,
        map=map,
        texts=not no_texts,
    )
    folder = out or shared.default_folder(model, data, final_norm or "applied", limit=limit)
    where = shared.run_keywords(device, model_option, engine, as_json)
    run = profile(model, data, out=folder, overwrite=overwrite, **settings, **where)
    shared.show_run(as_json, run, f"layerscope select {shared.shell_quote(folder)}")
