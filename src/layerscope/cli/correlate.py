"""`layerscope correlate`: do the metrics say where the scores are?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from layerscope.cli import shared
from layerscope.cli.app import command
from layerscope.cli.shared import DATA, METRICS, option, parse_list

if TYPE_CHECKING:
    from layerscope.correlation import Tables


@command("correlate", "layerscope correlate runs/profile runs/scores --surrogates 499")
def correlate_command(
    output: shared.Printing,
    runs: list[Path] = typer.Argument(
        None,
        help="Folders of a profile and an evaluation of the same model. Also possible: a profile per task (`profile --task`), "
        "and several models.",
    ),
    model: str | None = option(
        None,
        "--atlas",
        panel=DATA,
        help="Use models of the atlas instead of runs, comma-separated, e.g. Pythia-410m.",
    ),
    metric: str | None = option(
        None, "-m", panel=METRICS, help="Comma-separated metric names. (default: all)"
    ),
    measure: str = option(
        "dcor,spearman,kendall",
        panel=METRICS,
        help="Comma-separated: dcor, dcor_corrected, spearman, kendall.",
    ),
    convention: str = option(
        "english",
        panel=DATA,
        help="Atlas: which score of a task with several subsets: authors or english.",
    ),
    readout: str = option(
        "plain/mean/applied/keep/none", panel=DATA, help="Runs: the readout whose scores are used."
    ),
    sink: str = option(
        "keep", panel=DATA, help="Runs: keep or drop the sink token, in metrics that allow it."
    ),
    surrogates: int = option(
        999, panel=METRICS, help="Number of random, equally smooth curves for each p-value."
    ),
    seed: int = shared.seed_option("Seed of the surrogates and the bootstrap."),
    out: Path | None = shared.out_option("Draw to this file: .png, .svg or .pdf."),
) -> None:
    """Test whether metrics follow the scores across layers, against random curves that are equally
    smooth."""
    from layerscope.atlas import correlation_tables
    from layerscope.correlation import correlate
    from layerscope.errors import LayerscopeError

    if (model is None) == (not runs):
        raise LayerscopeError(
            "give either --atlas MODEL, or a profile folder and an evaluation folder of the same model."
        )
    named = parse_list(model) or []
    every = (
        [correlation_tables(name, convention) for name in named]
        if named
        else _from_folders(runs, readout, sink)
    )
    for tables in every:
        _keep(tables, parse_list(metric))
    settings: dict[str, Any] = {
        "measures": parse_list(measure) or [],
        "surrogates": surrogates,
        "seed": seed,
    }
    if len(every) > 1:
        _over_models(every, settings, out, output)
        return
    tables = every[0]
    correlations = correlate(tables.metrics, tables.scores, **settings)
    from layerscope.report.atlas import print_correlations

    folders = shared.shell_quote(*(runs or []))
    output.show(
        {**tables.facts, **correlations.as_dict(), "notes": tables.notes},
        lambda: print_correlations(correlations, tables),
        then=f"layerscope report {folders}"
        if folders
        else f"layerscope report --atlas {shared.shell_quote(model or '')}",
    )
    if out is not None:
        from layerscope.report.drawing import save_figure
        from layerscope.report.panels import correlation_charts, plot_charts

        title = f"{tables.facts['model']}: metrics and scores across layers"
        print(
            f"Written to {save_figure(plot_charts(correlation_charts(correlations), title), out)}",
            file=sys.stderr,
        )


def _keep(tables: Tables, chosen: list[str] | None) -> None:
    """Only the chosen metrics."""
    from layerscope.errors import UnknownNameError

    if chosen is None:
        return
    measured = set(tables.metrics["metric"])
    for name in chosen:
        if name not in measured:
            raise UnknownNameError("metric", name, measured)
    tables.metrics = tables.metrics[tables.metrics["metric"].isin(chosen)]


def _over_models(
    every: list[Tables], settings: dict[str, Any], out: Path | None, output: shared.Printing
) -> None:
    """Several models: the test over them, and each model's mean over tasks."""
    from layerscope.correlation import correlate, over_models
    from layerscope.errors import LayerscopeError

    if out is not None:
        raise LayerscopeError("--out draws the correlations of one model; give a single one.")
    names = [str(tables.facts["model"]) for tables in every]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LayerscopeError(
            f"{', '.join(sorted(twice))} is given more than once: a model counts once."
        )
    found = {
        name: correlate(t.metrics, t.scores, bootstrap=100, **settings)
        for name, t in zip(names, every, strict=True)
    }
    families = {
        name: str(tables.facts.get("family", name))
        for name, tables in zip(names, every, strict=True)
    }
    result = over_models(found, families)
    from layerscope.report.atlas import print_over_models

    value = {
        **result.as_dict(),
        "families": families,
        "notes": [note for t in every for note in t.notes],
    }
    output.show(value, lambda: print_over_models(result, families))


def _from_folders(runs: list[Path], readout: str, sink: str) -> list[Tables]:
    """One pair of tables per evaluation, with the profiles of the same model."""
    from layerscope.core.identity import ModelIdentity
    from layerscope.core.runs import load_run
    from layerscope.correlation import from_runs
    from layerscope.errors import RunFolderError

    loaded: list[Any] = [load_run(run) for run in runs]
    evaluations = [run for run in loaded if run.kind == "evaluation"]
    profiles = [run for run in loaded if run.kind == "profile"]
    if not evaluations or not profiles or len(evaluations) + len(profiles) != len(loaded):
        raise RunFolderError(
            "give the folders of a profile and of an evaluation of the same model; given: "
            f"{', '.join(run.kind for run in loaded) or 'none'}. `layerscope profile` and `layerscope evaluate` make them."
        )
    if len(evaluations) == 1:
        return [
            from_runs(profiles, evaluations[0], readout, sink)
        ]  # which says what is wrong where they do not fit
    identities = [ModelIdentity.of(run.manifest["model"]) for run in profiles]
    out, used = [], set[int]()
    for evaluation in evaluations:
        identity = ModelIdentity.of(evaluation.manifest["model"])
        own = [i for i, known in enumerate(identities) if known.same_as(identity)]
        if not own:
            raise RunFolderError(f"there is no profile of {evaluation.name} among the folders.")
        out.append(from_runs([profiles[i] for i in own], evaluation, readout, sink))
        used.update(own)
    if lacking := [run.name for i, run in enumerate(profiles) if i not in used]:
        raise RunFolderError(f"there is no evaluation of {', '.join(lacking)} among the folders.")
    return out
