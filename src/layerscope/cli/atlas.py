"""`layerscope atlas`: the published layer-by-layer results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import EXAMPLES, PlainCommand, PlainGroup, app
from layerscope.errors import LayerscopeError, printable

atlas = typer.Typer(
    cls=PlainGroup,
    help="Show the paper's published results, compare your runs with them, and share your own.",
    epilog="Example:\n\nlayerscope atlas show Pythia-410m",
    no_args_is_help=True,
)
EXAMPLES["atlas"] = "layerscope atlas models"
app.add_typer(atlas, name="atlas")

CONVENTION = typer.Option("english", "--convention", help="Which score of a task with several subsets: authors or english.")
OUT = typer.Option(None, "--out", "-o", help="Draw to this file: .png, .svg or .pdf.")
RUN = typer.Option([], "--run", metavar="<path>", help="Folder of your own profile or evaluation to compare; repeatable.")


@atlas.command("models", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas models")
def models_command(as_json: bool = shared.AS_JSON) -> None:
    """List the models of the atlas, published or imported, and what it has of each."""
    from layerscope.atlas import imported_models, models

    table, others = models(), imported_models()
    if as_json:
        published = table.astype(object).where(table.notna(), None).to_dict(orient="records")
        shared.print_json([*published, *({**row, "imported": True} for row in others.to_dict(orient="records"))])
        return
    from layerscope.report.atlas import print_imported_models, print_models

    print_models(table)
    if len(others):
        print_imported_models(others)
    shared.next_step("layerscope atlas show MODEL")


@atlas.command("show", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas show Pythia-410m")
def show_command(
    model: str = typer.Argument(..., help="A name from `layerscope atlas models`, e.g. Pythia-410m@step1000."),
    convention: str = CONVENTION,
    run: list[Path] = RUN,
    out: Path | None = OUT,
    as_json: bool = shared.AS_JSON,
) -> None:
    """Show one model: scores by task, metrics by layer."""
    from layerscope.atlas.overlay import load_overlay
    from layerscope.atlas.summary import show

    summary = show(model, convention)
    overlays = [load_overlay(path) for path in run]
    if as_json:
        shared.print_json({**summary, "runs": [overlay.as_dict() for overlay in overlays]})
    elif summary.get("imported"):
        from layerscope.report.atlas import print_imported

        print_imported(summary)
        shared.next_step(f"layerscope atlas compare {shared.shown(model)} Pythia-410m")
    else:
        from layerscope.report.atlas import print_model, print_overlay

        print_model(summary)
        for overlay in overlays:
            print_overlay(overlay)
        shared.next_step(f"layerscope report --atlas {shared.shown(model)}")
    _draw(out, [model], convention, overlays)


@atlas.command("compare", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas compare Pythia-410m bert-base")
def compare_command(
    models: list[str] = typer.Argument(..., help="Names from `layerscope atlas models`."),
    convention: str = CONVENTION,
    run: list[Path] = RUN,
    out: Path | None = OUT,
    as_json: bool = shared.AS_JSON,
) -> None:
    """Compare several models and your own runs on the same axes."""
    from layerscope.atlas.overlay import load_overlay
    from layerscope.atlas.summary import compare, split_imported

    published, imported = split_imported(models)
    overlays = [*imported, *(load_overlay(path) for path in run)]
    rows = compare(published, convention, overlays)
    if as_json:
        shared.print_json({"convention": convention, "models": rows, "runs": [overlay.as_dict() for overlay in overlays]})
    else:
        from layerscope.report.atlas import print_comparison, print_overlay

        print_comparison(rows, convention)
        for overlay in overlays:
            print_overlay(overlay)
        if published:
            shared.next_step(f"layerscope report --atlas {shared.shown(','.join(published))}")
    _draw(out, published, convention, overlays)


@atlas.command("export", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas export runs/profile runs/scores --out my-results")
def export_command(
    runs: list[Path] = typer.Argument(..., help="Folders of profiles, evaluations or probes."),
    out: Path = typer.Option(..., "--out", "-o", help="Folder to write."),
    title: str | None = typer.Option(None, "--title", help="Name on the data card. (default: the folder's)"),
    license: str = typer.Option("unknown", "--license", help="License of the results, e.g. cc-by-4.0."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace results exported to this folder earlier."),
    as_json: bool = shared.AS_JSON,
) -> None:
    """Write your results as one parquet file and a data card, ready for a hub dataset."""
    from layerscope.atlas.sharing import export_results, read_results

    folder = export_results(runs, out, title=title, license=license, overwrite=overwrite)
    table = read_results(folder)
    if as_json:
        shared.print_json({"out": str(folder), "rows": len(table), "models": sorted(set(table["model"]))})
        return
    models = table["model"].nunique()
    print(f"{len(table):,} values of {models} model{'s' * (models > 1)}. Written to {printable(str(folder))}", file=sys.stderr)
    shared.next_step(f"hf upload --repo-type dataset YOU/NAME {shared.shown(folder)}")


@atlas.command("import", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas import my-results")
def import_command(
    folder: Path = typer.Argument(..., help="A folder that `layerscope atlas export` wrote, or a download of one."),
    name: str | None = typer.Option(None, "--name", help="Name to import it under. (default: the folder's name)"),
    overwrite: bool = typer.Option(False, "--overwrite", help="Replace other results imported under this name."),
    as_json: bool = shared.AS_JSON,
) -> None:
    """Check results that somebody exported, and add them to the atlas."""
    from layerscope.atlas import import_results

    table = import_results(folder, name=name, overwrite=overwrite)
    if as_json:
        shared.print_json(table.to_dict(orient="records"))
        return
    from layerscope.report.atlas import print_imported_models

    print_imported_models(table)
    shared.next_step(f"layerscope atlas show {shared.shown(table['model'].iloc[0])}")


@atlas.command("forget", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas forget my-results")
def forget_command(
    name: str = typer.Argument(..., help="Name of the imported results: the part before the colon in `atlas models`."),
    as_json: bool = shared.AS_JSON,
) -> None:
    """Remove imported results."""
    from layerscope.atlas import remove_imported

    remove_imported(name)
    if as_json:
        shared.print_json({"forgotten": name})
        return
    print(f"{name} is forgotten", file=sys.stderr)


@atlas.command("reproduce", cls=PlainCommand, epilog="Example:\n\nlayerscope atlas reproduce table2")
def reproduce_command(
    item: str = typer.Argument(..., help="table2, fig1, fig2, fig3, fig4, fig8 to fig14, talk, appendixB, or all."),
    convention: str = typer.Option(
        "both", "--convention", help="Which score of a task with several subsets: authors, english or both."
    ),
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
    print(f"Written to {printable(str(path))}", file=sys.stderr)
