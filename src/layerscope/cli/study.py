"""`layerscope study` and `layerscope recipe`: one experiment of the paper, or several from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, METRICS, RESULT, default_folder, option
from layerscope.errors import LayerscopeError


@command("study", "layerscope study extreme smollm2-135m --data lee --limit 20 --out runs/extreme")
def study_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    name: str = typer.Argument(..., help="Name of a study; `list` shows all of them, `list NAME` the options of one."),
    models: list[str] = typer.Argument(
        None, help="Catalogue names, hub ids or folders; MODEL?dtype=bfloat16 sets an option of one model."
    ),
    data: str = typer.Option("lee", "--data", "-d", rich_help_panel=DATA, help=shared.DATA_HELP),
    column: str | None = option(None, "--column", panel=DATA, help="Column of the texts, if the file has several."),
    limit: int | None = typer.Option(None, "--limit", "-n", rich_help_panel=DATA, help="Use the first N usable texts."),
    max_length: int = option(256, "--max-length", panel=DATA, help=shared.MAX_LENGTH_HELP),
    final_norm: str = option("raw", "--final-norm", panel=METRICS, help=shared.FINAL_NORM_HELP),
    settings: list[str] = typer.Option(
        [],
        "--set",
        "-s",
        rich_help_panel=METRICS,
        help="Option of the study as NAME=VALUE (`study list STUDY` shows them); repeatable.",
    ),
    seed: int = option(0, "--seed", panel=METRICS, help="Seed of random draws and of the intervals."),
    out: Path | None = typer.Option(
        None, "--out", "-o", rich_help_panel=RESULT, help="Folder of the study. (default: runs/NAME--MODELS--DATA)"
    ),
) -> None:
    """Run one of the paper's experiments: a table, a figure, and the answer in plain words.

    The paper is Layer by Layer (Skean et al., ICML 2025).
    """
    from layerscope.core.runs import view
    from layerscope.studies.base import get_study
    from layerscope.studies.terminal import print_options, print_studies, studies_as_dict

    given = list(models or [])
    if name == "list":
        output.show(
            studies_as_dict(given),
            (lambda: print_options([get_study(each) for each in given])) if given else print_studies,
            then=_call(get_study(given[0])) if given else "layerscope study NAME MODEL",
        )
        return
    from layerscope.studies.run import study

    chosen = get_study(name)
    parts = [name, *(each.partition("?")[0] for each in given[:3]), *([data] if chosen.texts else [])]
    folder = out or default_folder(*parts, limit=limit if chosen.texts else None)
    with running.open() as engine:
        run = study(
            name,
            *given,
            data=data,
            out=folder,
            column=column,
            limit=limit,
            max_length=max_length,
            final_norm=final_norm,
            seed=seed,
            offline=running.offline,
            engine=engine,
            overwrite=output.overwrite,
            progress=output.progress,
            model_options={name: value for name, value in loading.as_dict().items() if name != "revision" or value},
            **read_settings(settings),
        )
    output.show(
        run.summary(),
        lambda: view("study", "print")(run),
        f"{folder}: study.csv, study.parquet, figure.png, figure.svg, manifest.json",
        f"layerscope report {shared.shown(folder)}",
    )


def _call(study: Any) -> str:
    """The shortest call of a study: with as many models as it needs."""
    return " ".join(["layerscope study", study.name, *("MODEL", "OTHER")[: study.models[0]]])


def read_settings(given: list[str]) -> dict[str, Any]:
    """`name=value` pairs; the study reads the values.

    >>> read_settings(["levels=0,1"])
    {'levels': '0,1'}
    """
    settings = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise LayerscopeError(f"--set takes NAME=VALUE, not {pair!r}. `layerscope study list NAME` shows a study's options.")
        settings[name.strip()] = value
    return settings
