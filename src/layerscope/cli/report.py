"""`layerscope report`, `layerscope open` and `layerscope plot`: runs as one page, in a browser, or
as a figure."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, RESULT, option, parse_list
from layerscope.errors import LayerscopeError

RUNS = typer.Argument(
    None, help="Folders of finished runs of any kind, or files from `select --json`."
)
ATLAS = option(
    None, "--atlas", panel=DATA, help="Published models to add, e.g. Pythia-410m,bert-base."
)


@command("report", "layerscope report runs/profile runs/scores --out report.html")
def report_command(
    output: shared.Printing,
    runs: list[Path] = RUNS,
    out: Path = shared.out_option(
        "File to write: .html, .md, .pdf, .png or .svg.", Path("report.html")
    ),
    atlas: str | None = ATLAS,
    texts: bool = shared.TEXTS,
) -> None:
    """Write one self-contained page about runs: a headline, a map, curves, scores, correlations,
    tables."""
    from layerscope.report.contents import gather
    from layerscope.report.write import write

    report = gather([*(runs or []), *atlas_runs(atlas, runs)], texts=texts)
    target = write(report, out)
    headline = {"lead": report.headline.lead, "points": report.headline.points}
    output.tell(
        {"report": target, "headline": headline, "runs": [run.label for run in report.runs]},
        target,
        f"layerscope open {shared.shell_quote(*(runs or []))}".rstrip(),
    )


def atlas_runs(atlas: str | None, runs: list[Path] | None) -> list[Any]:
    """What the atlas holds about the models named."""
    if atlas is None:
        if not runs:
            raise LayerscopeError(
                "give folders of finished runs, or --atlas with names of published models."
            )
        return []
    from layerscope.report.sources import from_atlas

    return [part for name in parse_list(atlas) or [] for part in from_atlas(name)]


@command("open", "layerscope open runs/profile runs/scores")
def open_command(
    output: shared.Printing,
    runs: list[Path] = typer.Argument(None, help="Folders of finished runs of any kind."),
    atlas: str | None = ATLAS,
    model: str | None = option(
        None,
        panel=DATA,
        help="The model of an improve run, if it is not found by its name: the page can then ask it.",
    ),
    store: Path | None = option(
        None,
        panel=DATA,
        help="The embedding store of that run, if it is another than the usual one.",
    ),
    port: int = option(0, panel=RESULT, help="Port on 127.0.0.1; 0: any free one."),
    browser: bool = option(
        True, "--browser/--no-browser", panel=RESULT, help="Open a browser window."
    ),
    texts: bool = shared.TEXTS,
) -> None:
    """Write a report of the runs and serve it on this machine only, until you press Ctrl-C."""
    from layerscope.report.server import serve
    from layerscope.report.write import page_for

    published = atlas_runs(atlas, runs)
    asker = _asker(runs or [], model, store)
    page = page_for(runs or [], published, asks=asker is not None, texts=texts)
    with serve(page, port, asker) as served:
        then = f"layerscope select {shared.shell_quote(*(runs or []))}".rstrip()
        output.tell({"url": served.url, "page": page}, served.url, then)
        sys.stdout.flush()
        if not output.silent:
            print("Serving on this machine only. Ctrl-C ends it.", file=sys.stderr)
        if browser:
            webbrowser.open(served.once)
        served.wait()


def _asker(runs: list[Path], model: str | None, store: Path | None) -> Any:
    """What answers questions about the only run, if it is an improvement with a map; it gets ready
    meanwhile."""
    from layerscope.core.runs import MANIFEST, load_run
    from layerscope.report.asking import Asker

    if len(runs) != 1 or not (runs[0] / MANIFEST).is_file():
        return None
    run: Any = load_run(runs[0])
    if run.kind != "improve" or run.find_map() is None:
        return None
    asker = Asker(run, model, store)
    asker.start()
    return asker


@command(
    "plot", "layerscope plot runs/profile --metrics prompt_entropy,curvature --out profile.png"
)
def plot_command(
    output: shared.Printing,
    runs: list[Path] = typer.Argument(
        ...,
        help="Folders of finished runs of one kind: profiles, probes, a study or an improvement.",
    ),
    out: Path = shared.out_option("File to write: .png, .svg or .pdf.", Path("profile.png")),
    metrics: str | None = option(
        None, panel=DATA, help="Comma-separated metric names, for profiles."
    ),
    x: str | None = option(None, panel=DATA, help="x-axis: depth or layer. (default: depth)"),
) -> None:
    """Draw the curves of runs on the same axes."""
    from layerscope.core.runs import explain_damage_in, load_run
    from layerscope.report.drawing import save_figure

    opened = [load_run(path) for path in runs]
    with explain_damage_in(runs):
        figure = _figure(opened, parse_list(metrics), x)
    target = save_figure(figure, out)
    output.tell({"figure": target}, target, f"layerscope report {shared.shell_quote(*runs)}")


def _figure(runs: list[Any], metrics: list[str] | None, x: str | None) -> Any:
    from layerscope.core.runs import view

    kinds = sorted({run.kind for run in runs})
    axis = {} if x is None else {"x": x}
    if kinds == ["profile"]:
        return view("profile", "plot")(runs, metrics, **axis)
    if metrics is not None:
        raise LayerscopeError(
            f"--metrics names metrics of profiles; these runs are of kind {', '.join(kinds)}."
        )
    if kinds == ["probe"]:
        return view("probe", "plot")(runs, **axis)
    if len(runs) == 1 and hasattr(runs[0], "plot"):
        return runs[0].plot()
    raise LayerscopeError(
        f"plot draws profiles, probes, one study or one improvement; given: {', '.join(run.kind for run in runs)}. "
        "`layerscope report` shows runs of any kind."
    )
