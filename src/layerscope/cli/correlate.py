"""`layerscope correlate`: do the metrics say where the scores are?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, METRICS, RESULT, option, words

if TYPE_CHECKING:
    from layerscope.correlation import Tables


@command("correlate", "layerscope correlate runs/profile runs/scores --surrogates 499")
def correlate_command(
    runs: list[Path] = typer.Argument(None, help="A profile folder and an evaluation folder of the same model."),
    model: str | None = option(None, "--atlas", panel=DATA, help="A model of the atlas instead, e.g. Pythia-410m."),
    metric: str | None = typer.Option(
        None, "--metric", "-m", rich_help_panel=METRICS, help="Comma-separated metric names. (default: all)"
    ),
    measure: str = option(
        "dcor,spearman,kendall", "--measure", panel=METRICS, help="Of dcor, dcor_corrected, spearman, kendall."
    ),
    convention: str = option("english", "--convention", panel=DATA, help="Atlas: authors or english."),
    metrics_on: str | None = option(
        None, "--metrics-on", panel=DATA, help="Atlas: mteb or wikitext. (default: mteb where there is)"
    ),
    readout: str = option(
        "plain/mean/applied/keep/none", "--readout", panel=DATA, help="Runs: the readout whose scores are used."
    ),
    sink: str = option("keep", "--sink", panel=DATA, help="Runs: keep or drop the sink token in the metrics that can."),
    surrogates: int = option(
        999, "--surrogates", panel=METRICS, help="Unrelated curves, as smooth as the scores', behind each p-value."
    ),
    seed: int = option(0, "--seed", panel=METRICS, help="Seed of the surrogates and the bootstrap."),
    out: Path | None = typer.Option(
        None, "--out", "-o", rich_help_panel=RESULT, help="Draw to this file; its suffix says png, svg or pdf."
    ),
    as_json: bool = shared.AS_JSON,
    quiet: bool = shared.QUIET,
) -> None:
    """Associate each metric with the scores across layers, beside what unrelated curves as smooth would give."""
    from layerscope.atlas import correlation_tables
    from layerscope.correlation import correlate
    from layerscope.errors import LayerscopeError, UnknownNameError

    if (model is None) == (not runs):
        raise LayerscopeError("give either --atlas MODEL, or a profile folder and an evaluation folder of the same model.")
    tables = correlation_tables(model, convention, metrics_on) if model is not None else _from_folders(runs, readout, sink)
    chosen = words(metric)
    if chosen is not None:
        measured = set(tables.metrics["metric"])
        for name in chosen:
            if name not in measured:
                raise UnknownNameError("metric", name, measured)
        tables.metrics = tables.metrics[tables.metrics["metric"].isin(chosen)]
    correlations = correlate(
        tables.metrics,
        tables.scores,
        measures=words(measure) or [],
        surrogates=surrogates,
        seed=seed,
    )
    if as_json:
        shared.print_json({**tables.facts, **correlations.as_dict(), "notes": tables.notes})
    elif not quiet:
        from layerscope.report.atlas import print_correlations

        print_correlations(correlations, tables)
    if out is not None:
        from layerscope.report.drawing import save_figure
        from layerscope.report.panels import correlation_panels, plot_panels

        title = f"{tables.facts['model']}: metrics and scores across layers"
        print(f"Written to {save_figure(plot_panels(correlation_panels(correlations), title), out)}", file=sys.stderr)
    if not as_json and not quiet:
        folders = " ".join(shared.shown(run) for run in runs or [])
        shared.next_step(f"layerscope report {folders}" if folders else f"layerscope report --atlas {shared.shown(model or '')}")


def _from_folders(runs: list[Path], readout: str, sink: str) -> Tables:
    from layerscope.core.runs import load_run
    from layerscope.correlation import from_runs
    from layerscope.errors import RunFolderError

    loaded = {run.kind: run for run in map(load_run, runs)}
    if len(runs) != 2 or set(loaded) != {"profile", "evaluation"}:
        raise RunFolderError(
            f"two folders are needed, a profile and an evaluation of the same model; given: {', '.join(loaded) or 'none'}. "
            "`layerscope profile` and `layerscope evaluate` make them."
        )
    return from_runs(loaded["profile"], loaded["evaluation"], readout, sink)  # type: ignore[arg-type]
