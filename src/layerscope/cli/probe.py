"""`layerscope probe`: how well classes can be read from every layer's states."""

from __future__ import annotations

from typing import Annotated

import typer

from layerscope.cli import shared
from layerscope.cli.app import command


@command(
    "probe",
    shared.LOOK,
    "layerscope probe smollm2-135m --data TrecQuestions --heads mean --sample 200 --out runs/probe",
)
def probe_command(
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
        str, typer.Option("--heads", "-p", help="Probes: attention, linear, mean, knn.")
    ] = "attention",
    layers: shared.Layers = None,
    out: shared.RunFolder = None,
    option: shared.Settings = None,
    device: shared.Device = None,
    model_option: shared.ModelSettings = None,
    engine: shared.Engine = "local",
    overwrite: shared.Overwrite = False,
    as_json: shared.AsJson = False,
) -> None:
    """Train probes (small classifiers) on the frozen states of all layers at once.

    Run the same command again to resume.
    """
    from layerscope.probing import probe

    settings = shared.keywords(
        option,
        test=test,
        sample=sample,
        max_length=max_length,
        heads=shared.parse_list(heads),
        layers=shared.parse_layers(layers),
    )
    folder = out or shared.default_folder(model, data or "data", "probe", limit=sample)
    where = shared.run_keywords(device, model_option, engine, as_json)
    run = probe(model, data, out=folder, overwrite=overwrite, **settings, **where)
    shared.show_run(as_json, run, f"layerscope report {shared.shell_quote(folder)}")
