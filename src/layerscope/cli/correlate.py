"""`layerscope correlate`: do the metrics say where the scores are?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from layerscope.cli import shared
from layerscope.cli.app import app
from layerscope.cli.options import words

if TYPE_CHECKING:
    from layerscope.correlation import Tables


@app.command("correlate")
def correlate_command(
    runs: list[Path] = typer.Argument(None, help="A profile folder and an evaluation folder of the same model."),
    model: str | None = typer.Option(None, "--atlas", help="A model of the atlas instead, e.g. Pythia-410m."),
    metric: str | None = typer.Option(None, "--metric", "-m", help="Comma-separated metric names. (default: all)"),
    measure: str = typer.Option("dcor,spearman,kendall", "--measure", help="Of dcor, dcor_corrected, spearman, kendall."),
    convention: str = typer.Option("english", "--convention", help="Atlas: authors or english."),
    metrics_on: str | None = typer.Option(None, "--metrics-on", help="Atlas: mteb or wikitext. (default: mteb where there is)"),
    readout: str = typer.Option("plain/mean/applied/keep/none", "--readout", help="Runs: the readout whose scores are used."),
    sink: str = typer.Option("keep", "--sink", help="Runs: keep or drop the sink token in the metrics that can."),
    permutations: int = typer.Option(9999, "--permutations", help="Random orders of the layers behind each p-value."),
    seed: int = typer.Option(0, "--seed", help="Seed of the permutations and the bootstrap."),
    out: Path | None = typer.Option(None, "--out", "-o", help="Draw to this file; its suffix says png, svg or pdf."),
    as_json: bool = shared.AS_JSON,
) -> None:
    """Associate each metric with the scores across layers, beside what independent data would give."""
    from layerscope.correlation import correlate, from_atlas
    from layerscope.errors import LayerscopeError, UnknownNameError

    if (model is None) == (not runs):
        raise LayerscopeError("give either --atlas MODEL, or a profile folder and an evaluation folder of the same model.")
    tables = from_atlas(model, convention, metrics_on) if model is not None else _from_folders(runs, readout, sink)
    chosen = words(metric)
    if chosen is not None:
        held = set(tables.metrics["metric"])
        for name in chosen:
            if name not in held:
                raise UnknownNameError("metric", name, held)
        tables.metrics = tables.metrics[tables.metrics["metric"].isin(chosen)]
    found = correlate(
        tables.metrics,
        tables.scores,
        measures=words(measure) or [],
        permutations=permutations,
        task_permutations=min(1999, permutations),  # single tasks are many
        seed=seed,
    )
    if as_json:
        from layerscope.store.atomic import plain

        print(json.dumps(plain({**tables.facts, **found.as_dict(), "notes": tables.notes}), indent=2, ensure_ascii=False))
    else:
        from layerscope.report.atlas import print_correlations

        print_correlations(found, tables)
    if out is not None:
        from layerscope.report.drawing import save_figure
        from layerscope.report.panels import correlation_panels, plot_panels

        title = f"{tables.facts['model']}: metrics and scores across layers"
        print(f"Written to {save_figure(plot_panels(correlation_panels(found), title), out)}", file=sys.stderr)


def _from_folders(runs: list[Path], readout: str, sink: str) -> Tables:
    from layerscope.correlation import from_runs
    from layerscope.errors import RunFolderError
    from layerscope.evaluation.run import Evaluation
    from layerscope.profiling.run import Run
    from layerscope.store import RunFolder

    kinds = {}
    for path in runs:
        manifest = RunFolder(path).manifest()
        if manifest is None:
            raise RunFolderError(f"{path} holds no run: there is no manifest.json in it.")
        kinds[str(manifest.get("kind"))] = path
    if len(runs) != 2 or set(kinds) != {"profile", "evaluation"}:
        raise RunFolderError(
            f"two folders are needed, a profile and an evaluation of the same model; given: {', '.join(kinds) or 'none'}. "
            "`layerscope profile` and `layerscope evaluate` make them."
        )
    return from_runs(Run.load(kinds["profile"]), Evaluation.load(kinds["evaluation"]), readout, sink)
