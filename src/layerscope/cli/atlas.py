"""`layerscope atlas`: the published layer-by-layer results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import EXAMPLES, PlainGroup, app, command
from layerscope.errors import LayerscopeError, printable

atlas = typer.Typer(
    cls=PlainGroup,
    help="Show the paper's published results, and compare your runs with them.",
    epilog="Example:\n\nlayerscope atlas show Pythia-410m",
    no_args_is_help=True,
)
EXAMPLES["atlas"] = "layerscope atlas models"
app.add_typer(atlas, name="atlas")

CONVENTION = typer.Option(
    "english",
    "--convention",
    help="Which score of a task with several subsets: authors or english.",
)
OUT = typer.Option(None, "--out", "-o", help="Draw to this file: .png, .svg or .pdf.")
RUN = typer.Option(
    [],
    "--run",
    metavar="<path>",
    help="Folder of a profile or an evaluation to compare; repeatable.",
)


@command("models", "layerscope atlas models", atlas)
def models_command(output: shared.Listing) -> None:
    """List the models of the atlas, and what it has of each."""
    from layerscope.atlas import models
    from layerscope.report.atlas import print_models

    table = models()
    rows = table.astype(object).where(table.notna(), None).to_dict(orient="records")
    output.show(rows, lambda: print_models(table), then="layerscope atlas show MODEL")


@command("show", "layerscope atlas show Pythia-410m", atlas)
def show_command(
    output: shared.Listing,
    model: str = typer.Argument(
        ..., help="A name from `layerscope atlas models`, e.g. Pythia-410m@step1000."
    ),
    convention: str = CONVENTION,
    run: list[Path] = RUN,
    out: Path | None = OUT,
) -> None:
    """Show one model: scores by task, metrics by layer."""
    from layerscope.atlas.summary import lay_beside, show
    from layerscope.report.atlas import print_model

    summary = show(model, convention)
    overlays = lay_beside(run, [model], convention)
    then = f"layerscope report --atlas {shared.shell_quote(model)}"
    value = {**summary, "runs": [overlay.as_dict() for overlay in overlays]}
    output.show(value, lambda: print_model(summary, overlays), then=then)
    _draw(out, [model], convention, overlays)


@command("compare", "layerscope atlas compare Pythia-410m bert-base", atlas)
def atlas_compare_command(
    output: shared.Listing,
    models: list[str] = typer.Argument(..., help="Names from `layerscope atlas models`."),
    convention: str = CONVENTION,
    run: list[Path] = RUN,
    out: Path | None = OUT,
) -> None:
    """Compare several models and your own runs on the same axes."""
    from layerscope.atlas.summary import compare, lay_beside

    overlays = lay_beside(run, models, convention)
    rows = compare(models, convention, overlays)
    from layerscope.report.atlas import print_comparison

    value = {
        "convention": convention,
        "models": rows,
        "runs": [overlay.as_dict() for overlay in overlays],
    }
    then = f"layerscope report --atlas {shared.shell_quote(','.join(models))}"
    output.show(value, lambda: print_comparison(rows, convention, overlays), then=then)
    _draw(out, models, convention, overlays)


@command("reproduce", "layerscope atlas reproduce table2", atlas)
def reproduce_command(
    output: shared.Listing,
    item: str = typer.Argument(
        ..., help="table2, fig1, fig2, fig3, fig4, fig8 to fig14, talk, or all."
    ),
    convention: str = typer.Option(
        "both",
        "--convention",
        help="Which score of a task with several subsets: authors, english or both.",
    ),
    out: Path | None = OUT,
) -> None:
    """Recompute a table or figure of the paper from the raw results, with a verdict per number."""
    from layerscope.atlas.reproduce import ALL, find_item, items, reproduce

    chosen = list(items().values()) if item == ALL else [find_item(item)]
    if out is not None and item == ALL:
        raise LayerscopeError(
            "`all` is not one figure: leave out --out, or name a table or figure to draw."
        )
    rows = reproduce(item, convention)
    from layerscope.report.atlas import print_item

    def printed() -> None:
        for found in chosen:
            print_item(found, [row for row in rows if row.item == found.name])

    output.show([row.as_dict() for row in rows], printed, then="layerscope study list")
    if out is not None:
        from layerscope.report.drawing import save_figure
        from layerscope.report.panels import plot_charts

        drawn = chosen[0].charts("english" if convention == "both" else convention)
        _told(save_figure(plot_charts(drawn, chosen[0].title), out))


def _draw(out: Path | None, models: list[str], convention: str, overlays: list[Any]) -> None:
    if out is None:
        return
    from layerscope.atlas.summary import charts
    from layerscope.report.drawing import save_figure
    from layerscope.report.panels import plot_charts

    footnote = "published results; scores: final norm at every layer; metrics (wikitext / imagenet): at the last layer only"
    _told(
        save_figure(
            plot_charts(charts(models, convention, overlays), ", ".join(models), footnote), out
        )
    )


def _told(path: Path) -> None:
    print(f"Written to {printable(str(path))}", file=sys.stderr)
