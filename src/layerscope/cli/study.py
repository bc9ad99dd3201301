"""`layerscope study` and `layerscope sweep`: one experiment of the paper, or many models, corpora
and studies from one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, METRICS, default_folder, option, parse_list
from layerscope.errors import LayerscopeError


class StudySettings(shared.CommandOptions):
    """What every study takes, under the names that `layerscope.study` has for it."""

    column: str | None = option(
        None, panel=DATA, help="Column of the texts, if the file has several."
    )
    limit: int | None = shared.size_option("Use the first N usable texts.")
    max_length: int = shared.length_option(256)
    final_norm: str | None = shared.norm_option(None, " (default: raw; for scores: applied)")
    seed: int = shared.seed_option("Seed of random draws and of the intervals.")


@command("study", "layerscope study extreme smollm2-135m --data lee --limit 20 --out runs/extreme")
def study_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    settings: StudySettings,
    name: str = typer.Argument(
        ..., help="Name of a study; `list` shows all of them, `list NAME` the options of one."
    ),
    models: list[str] = typer.Argument(
        None,
        help="Catalogue names, hub ids or folders; MODEL?dtype=bfloat16 sets an option of one model.",
    ),
    data: str = shared.data_option("lee", shared.DATA_HELP),
    options: list[str] = option(
        [],
        "--set",
        "-s",
        panel=METRICS,
        help="Option of the study as NAME=VALUE (`study list STUDY` shows them); repeatable.",
    ),
    out: Path | None = shared.out_option("Folder of the study. (default: runs/NAME--MODELS--DATA)"),
) -> None:
    """Run one of the paper's experiments: a table, a figure, and the answer in plain words.

    The paper is Layer by Layer (Skean et al., ICML 2025).
    """
    from layerscope.studies.base import STUDIES
    from layerscope.studies.terminal import print_options, print_studies, studies_as_dict

    given = list(models or [])
    if name == "list":
        output.show(
            studies_as_dict(given),
            (lambda: print_options([STUDIES.get(each) for each in given]))
            if given
            else print_studies,
            then=_call(STUDIES.get(given[0])) if given else "layerscope study NAME MODEL",
        )
        return
    from layerscope.studies.run import study

    chosen = STUDIES.get(name)
    parts = [
        name,
        *(each.partition("?")[0] for each in given[:3]),
        *([data] if chosen.texts else []),
    ]
    folder = out or default_folder(*parts, limit=settings.limit if chosen.texts else None)
    ways = shared.as_arguments(loading, running, output)
    run = study(
        name, *given, data=data, out=folder, **settings.given(), **ways, **read_settings(options)
    )
    output.show_run(
        run, f"layerscope report {shared.shell_quote(folder)}", also="figure.png, figure.svg"
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
            raise LayerscopeError(
                f"--set takes NAME=VALUE, not {pair!r}. `layerscope study list NAME` shows a study's options."
            )
        settings[name.strip()] = value
    return settings


@command("sweep", "layerscope sweep paper --dry-run")
def sweep_command(
    loading: shared.Loading,
    running: shared.Running,
    output: shared.Output,
    plan: str = typer.Argument(
        ...,
        help="YAML file with models, corpora, settings and steps (see docs/clusters.md), `paper` (the paper's experiments on its "
        "models) or `paper-small` (on the catalogue's).",
    ),
    out: Path | None = shared.out_option(
        "Folder of the sweep. (default: the file's, or runs/PLAN)"
    ),
    only: str | None = option(None, panel=DATA, help="Run only these steps, comma-separated."),
    dry_run: bool = option(
        False, panel=DATA, help="List the steps, and which are finished, and stop."
    ),
) -> None:
    """Profile and score many models on many corpora, and run studies, from one file.

    Model options are for every model of the file that does not set its own. Run the same command
    again to resume.
    """
    from layerscope.sweeps.run import sweep
    from layerscope.sweeps.terminal import print_plan

    ways = shared.as_arguments(loading, running, output)
    done = sweep(plan, out=out, only=parse_list(only), dry_run=dry_run, **ways)
    if dry_run:
        output.show(
            done.summary(),
            lambda: print_plan(done),
            then=f"layerscope sweep {shared.shell_quote(plan)}",
        )
    else:
        output.show_run(
            done, f"layerscope report {shared.shell_quote(done.path)}", also="a folder per step"
        )
    if done.failed:
        raise typer.Exit(2)
