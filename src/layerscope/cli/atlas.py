"""`layerscope atlas`: the published layer-by-layer results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import EXAMPLES, app
from layerscope.errors import LayerscopeError

atlas = typer.Typer(
    help="Published results of the paper: what is there, one model, several models, and its figures.",
    epilog="Example:\n\nlayerscope atlas show Pythia-410m",
    no_args_is_help=True,
)
EXAMPLES["atlas"] = "layerscope atlas models"
app.add_typer(atlas, name="atlas")

CONVENTION = typer.Option("english", "--convention", help="Which score of a task with several subsets: authors or english.")
OUT = typer.Option(None, "--out", "-o", help="Draw to this file; its suffix says png, svg or pdf.")
RUN = typer.Option([], "--run", help="A profile or evaluation folder of yours to lay over; repeatable.")


@atlas.command("models", epilog="Example:\n\nlayerscope atlas models")
def models_command(as_json: bool = shared.AS_JSON) -> None:
    """What the atlas holds of each model."""
    from layerscope.atlas import models

    table = models()
    if as_json:
        shared.print_json(table.astype(object).where(table.notna(), None).to_dict(orient="records"))
        return
    from layerscope.report.atlas import print_models

    print_models(table)
    shared.next_step("layerscope atlas show MODEL")


@atlas.command("show", epilog="Example:\n\nlayerscope atlas show Pythia-410m")
def show_command(
    model: str = typer.Argument(..., help="A name of `layerscope atlas models`, e.g. Pythia-410m@step1000."),
    convention: str = CONVENTION,
    run: list[Path] = RUN,
    out: Path | None = OUT,
    as_json: bool = shared.AS_JSON,
) -> None:
    """One model: scores by task, metrics by layer."""
    from layerscope.atlas.overlay import load_overlay
    from layerscope.atlas.summary import show

    summary = show(model, convention)
    overlays = [load_overlay(path) for path in run]
    if as_json:
        shared.print_json({**summary, "runs": [overlay.as_dict() for overlay in overlays]})
    else:
        from layerscope.report.atlas import print_model, print_overlay

        print_model(summary)
        for overlay in overlays:
            print_overlay(overlay)
        shared.next_step(f"layerscope report --atlas {shared.shown(model)}")
    _draw(out, [model], convention, overlays)


@atlas.command("compare", epilog="Example:\n\nlayerscope atlas compare Pythia-410m bert-base")
def compare_command(
    models: list[str] = typer.Argument(..., help="Names of `layerscope atlas models`."),
    convention: str = CONVENTION,
    run: list[Path] = RUN,
    out: Path | None = OUT,
    as_json: bool = shared.AS_JSON,
) -> None:
    """Several models, and runs of yours, on the same axes."""
    from layerscope.atlas.overlay import load_overlay
    from layerscope.atlas.summary import compare

    overlays = [load_overlay(path) for path in run]
    rows = compare(models, convention, overlays)
    if as_json:
        shared.print_json({"convention": convention, "models": rows, "runs": [overlay.as_dict() for overlay in overlays]})
    else:
        from layerscope.report.atlas import print_comparison, print_overlay

        print_comparison(rows, convention)
        for overlay in overlays:
            print_overlay(overlay)
        shared.next_step(f"layerscope report --atlas {shared.shown(','.join(models))}")
    _draw(out, models, convention, overlays)


@atlas.command("reproduce", epilog="Example:\n\nlayerscope atlas reproduce table2")
def reproduce_command(
    item: str = typer.Argument(..., help="table2, fig1, fig2, fig3, fig4, fig8 to fig14, talk, appendixB, or all."),
    convention: str = typer.Option("both", "--convention", help="authors, english or both."),
    out: Path | None = OUT,
    as_json: bool = shared.AS_JSON,
) -> None:
    """Recompute a table or figure of the paper from the raw results, with a verdict per number."""
    from layerscope.atlas.reproduce import ALL, find_item, items, reproduce

    chosen = list(items().values()) if item == ALL else [find_item(item)]
    if out is not None and item == ALL:
        raise LayerscopeError("`all` is not one figure: leave --out away, or name a table or figure to draw.")
    rows = reproduce(item, convention)
    if as_json:
        shared.print_json([row.as_dict() for row in rows])
    else:
        from layerscope.report.atlas import print_item

        for found in chosen:
            print_item(found, [row for row in rows if row.item == found.name])
        shared.next_step("layerscope study list")
    if out is not None:
        from layerscope.report.drawing import save_figure
        from layerscope.report.panels import plot_panels

        drawn = chosen[0].panels("english" if convention == "both" else convention)
        _told(save_figure(plot_panels(drawn, chosen[0].title), out))


def _draw(out: Path | None, models: list[str], convention: str, overlays: list[Any]) -> None:
    if out is None:
        return
    from layerscope.atlas.summary import panels
    from layerscope.report.drawing import save_figure
    from layerscope.report.panels import plot_panels

    footnote = "published results; scores: final norm at every layer; metrics (wikitext / imagenet): at the last layer only"
    _told(save_figure(plot_panels(panels(models, convention, overlays), ", ".join(models), footnote), out))


def _told(path: Path) -> None:
    print(f"Written to {path}", file=sys.stderr)
