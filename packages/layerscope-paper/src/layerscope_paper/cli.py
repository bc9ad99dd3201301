"""The command `layerscope-paper`: published results, correlations, studies, sweeps, theorems."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from layerscope.core.options import split_names
from layerscope.core.runs import folder_name
from layerscope.errors import LayerscopeError, printable
from layerscope.store.atomic import plain

if TYPE_CHECKING:
    from layerscope.core.charts import Chart
    from layerscope_paper.correlation import Tables

app = typer.Typer(
    name="layerscope-paper",
    help="Layer by Layer (Skean et al., ICML 2025): its published results, and its experiments "
    "on models and texts of your choice.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
JSON = typer.Option(False, "--json", help="Print the result as JSON.")
OUT = typer.Option(None, "--out", "-o", help="Draw to this file: .png, .svg or .pdf.")
CONVENTION = typer.Option(
    "english", help="Which score of a task with several subsets: authors or english."
)
FOLDER = typer.Option(None, "--out", "-o", help="Folder of the result. (default: below runs/)")
DEVICE = typer.Option(None, help="cpu, cuda or mps. (default: cuda if available)")
ENGINE = typer.Option("local", help="local (this process) or ray (workers of a Ray cluster).")
MODEL_OPTIONS = typer.Option(
    [],
    "--model-option",
    metavar="KEY=VALUE",
    help="How models are loaded and run, e.g. dtype=bfloat16 or batch_size=8; repeatable.",
)
OVERWRITE = typer.Option(False, "--overwrite", help="Replace a different run in the same folder.")


@app.command()
def published(
    models: list[str] = typer.Argument(None, help="Names of the list, e.g. Pythia-410m@step1000."),
    run: list[Path] = typer.Option(
        [], metavar="PATH", help="Folder of your profile or evaluation to compare; repeatable."
    ),
    convention: str = CONVENTION,
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """List the published models; show one, or compare several and your own runs."""
    from layerscope_paper import atlas, terminal
    from layerscope_paper.atlas import summary

    if not models:
        table = atlas.models()
        records = table.astype(object).where(table.notna(), None).to_dict(orient="records")
        _show(as_json, records, lambda: terminal.print_models(table))
        return
    overlays = summary.lay_beside(run, models, convention)
    runs = [overlay.as_dict() for overlay in overlays]
    if len(models) == 1:
        model = summary.show(models[0], convention)
        _show(as_json, {**model, "runs": runs}, lambda: terminal.print_model(model, overlays))
    else:
        rows = summary.compare(models, convention, overlays)
        value = {"convention": convention, "models": rows, "runs": runs}
        _show(as_json, value, lambda: terminal.print_comparison(rows, convention, overlays))
    if out is not None:
        footnote = (
            "published results; scores: final norm at every layer; metrics (wikitext / imagenet): "
            "at the last layer only"
        )
        _draw(summary.charts(models, convention, overlays), ", ".join(models), out, footnote)


@app.command()
def reproduce(
    item: str = typer.Argument(
        ..., help="table2, fig1, fig2, fig3, fig4, fig8 to fig14, talk, or all."
    ),
    convention: str = typer.Option("both", help="authors, english or both."),
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """Recompute a table or figure of the paper from the raw results, with a verdict per number."""
    from layerscope_paper import terminal
    from layerscope_paper.atlas import reproduce as reproduced

    if out is not None and item == reproduced.ALL:
        raise LayerscopeError(
            "`all` is not one figure: leave out --out, or name a table or figure to draw."
        )
    items = reproduced.find_items(item)
    rows = reproduced.reproduce(item, convention)

    def print_items() -> None:
        for paper_item in items:
            terminal.print_item(paper_item, [row for row in rows if row.item == paper_item.name])

    _show(as_json, [row.as_dict() for row in rows], print_items)
    if out is not None:
        charts = items[0].charts("english" if convention == "both" else convention)
        _draw(charts, items[0].title, out)


@app.command()
def correlate(
    runs: list[Path] = typer.Argument(
        None, help="Folders of a profile and an evaluation of the same model, or of several models."
    ),
    models: str | None = typer.Option(
        None, "--published", help="Published models instead of runs, e.g. Pythia-410m,bert-base."
    ),
    metric: str | None = typer.Option(
        None, "-m", "--metric", help="Names of metrics. (default: all)"
    ),
    measure: str = typer.Option(
        "dcor,spearman,kendall", help="dcor, dcor_corrected, spearman and kendall."
    ),
    convention: str = CONVENTION,
    readout: str = typer.Option(
        "plain/mean/applied/keep/none", help="Runs: the readout whose scores are used."
    ),
    sink: str = typer.Option(
        "keep", help="Runs: keep or drop the sink token, in metrics that allow it."
    ),
    surrogates: int = typer.Option(999, help="Random, equally smooth curves for each p-value."),
    seed: int = typer.Option(0, help="Seed of the surrogates and the bootstrap."),
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """Test whether metrics follow the scores over layers, against equally smooth random curves."""
    from layerscope_paper import correlation, terminal
    from layerscope_paper.atlas import correlation_tables

    if (models is None) == (not runs):
        raise LayerscopeError(
            "give either --published MODEL, or a profile folder and an evaluation folder of the "
            "same model."
        )
    if models is not None:
        tables = [correlation_tables(name, convention) for name in split_names(models)]
    else:
        tables = correlation.from_folders(runs, readout, sink)
    if metric is not None:
        for model_tables in tables:
            model_tables.select_metrics(split_names(metric))
    settings: dict[str, Any] = {
        "measures": split_names(measure),
        "surrogates": surrogates,
        "seed": seed,
    }
    if len(tables) > 1:
        if out is not None:
            raise LayerscopeError("--out draws the correlations of one model; give a single one.")
        _correlate_models(tables, settings, as_json)
        return
    (model_tables,) = tables
    facts = model_tables.facts
    result = correlation.correlate(model_tables.metrics, model_tables.scores, **settings)
    value = {**facts, **result.as_dict(), "notes": model_tables.notes}
    _show(as_json, value, lambda: terminal.print_correlations(result, model_tables))
    if out is not None:
        title = f"{facts['model']}: metrics and scores across layers"
        _draw(correlation.correlation_charts(result), title, out)


def _correlate_models(tables: list[Tables], settings: dict[str, Any], as_json: bool) -> None:
    """Print the test over several models."""
    from layerscope_paper import correlation, terminal

    by_model = {}
    families = {}
    for model in tables:
        name = str(model.facts["model"])
        if name in by_model:
            raise LayerscopeError(f"{name} is given more than once: give each model once.")
        by_model[name] = correlation.correlate(
            model.metrics, model.scores, bootstrap=100, **settings
        )
        families[name] = str(model.facts.get("family", name))
    result = correlation.over_models(by_model, families)
    notes = [note for model in tables for note in model.notes]
    value = {**result.as_dict(), "families": families, "notes": notes}
    _show(as_json, value, lambda: terminal.print_over_models(result, families))


@app.command()
def study(
    name: str = typer.Argument(
        ..., help="Name of a study; `list` shows all of them, `list NAME` the options of one."
    ),
    models: list[str] = typer.Argument(
        None, help="Names, hub ids or folders; MODEL?dtype=bfloat16 sets an option of one model."
    ),
    data: str = typer.Option("lee", "-d", "--data", help="Corpus name, file or hub dataset."),
    column: str | None = typer.Option(None, help="Column of the texts, if the file has several."),
    limit: int | None = typer.Option(None, "-n", "--limit", help="Use the first N usable texts."),
    max_length: int = typer.Option(256, help="Truncate texts to this many tokens."),
    final_norm: str | None = typer.Option(
        None, help="applied, raw or hf (the last layer only). (default: the study's)"
    ),
    seed: int = typer.Option(0, help="Seed of random draws and of the intervals."),
    settings: list[str] = typer.Option(
        [], "--set", "-s", metavar="NAME=VALUE", help="An option of the study; repeatable."
    ),
    out: Path | None = FOLDER,
    device: str | None = DEVICE,
    engine: str = ENGINE,
    model_options: list[str] = MODEL_OPTIONS,
    overwrite: bool = OVERWRITE,
    as_json: bool = JSON,
) -> None:
    """Run one of the paper's experiments: a table, a figure, and the answer in plain words."""
    from layerscope_paper.studies import STUDIES, terminal

    models = models or []
    if name == "list":
        named_studies = [STUDIES.get(study_name) for study_name in models]
        printer = (
            partial(terminal.print_options, named_studies) if models else terminal.print_studies
        )
        _show(as_json, terminal.studies_as_dict(models), printer)
        return
    from layerscope_paper.studies.run import study as run_study

    folder_words = [name, *(model.partition("?")[0] for model in models[:3])]
    if STUDIES.get(name).texts:
        folder_words.append(data)
        if limit is not None:
            folder_words.append(f"n{limit}")
    run = run_study(
        name,
        *models,
        data=data,
        column=column,
        limit=limit,
        max_length=max_length,
        final_norm=final_norm,
        seed=seed,
        out=out or _default_folder(folder_words),
        overwrite=overwrite,
        progress=False if as_json else None,
        engine=engine,
        **_model_keywords(model_options, device),
        **_read_pairs("--set", settings),
    )
    _show(as_json, run.summary(), lambda: terminal.print_study(run))
    _report_path(run.path, as_json, f"layerscope report {shlex.quote(str(run.path))}")


@app.command()
def sweep(
    plan: str = typer.Argument(
        ...,
        help="YAML file with models, corpora, settings and steps; `paper` (the paper's experiments "
        "on its models) or `paper-small` (on the catalogue's).",
    ),
    out: Path | None = FOLDER,
    only: str | None = typer.Option(None, help="Run only these steps, comma-separated."),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="List the steps, and which are finished."
    ),
    device: str | None = DEVICE,
    engine: str = ENGINE,
    model_options: list[str] = MODEL_OPTIONS,
    overwrite: bool = OVERWRITE,
    as_json: bool = JSON,
) -> None:
    """Profile and score many models on many corpora, and run studies, from one file.

    Run the same command again to resume.
    """
    from layerscope_paper.sweeps import terminal
    from layerscope_paper.sweeps.run import sweep as run_sweep

    result = run_sweep(
        plan,
        out=out,
        only=None if only is None else split_names(only),
        dry_run=dry_run,
        overwrite=overwrite,
        progress=False if as_json else None,
        engine=engine,
        **_model_keywords(model_options, device),
    )
    printer = terminal.print_plan if dry_run else terminal.print_sweep
    _show(as_json, result.summary(), lambda: printer(result))
    if not dry_run:
        _report_path(result.path, as_json, f"layerscope report {shlex.quote(str(result.path))}")
    if result.failed:
        raise typer.Exit(2)


@app.command()
def theorems(
    matrices: int = typer.Option(10_000, help="Random cases per statement."),
    seed: int = typer.Option(0, help="Seed of the cases."),
    as_json: bool = JSON,
) -> None:
    """Try to break Lemma 1, Theorems 1, 5, 6 and 7, Appendix B and Proposition 1."""
    import layerscope_paper
    from layerscope_paper.terminal import print_rows
    from layerscope_paper.theorems.appendix_b import rows

    progress = False if as_json else None
    run = layerscope_paper.study("theory", seed=seed, matrices=matrices, progress=progress)
    appendix = rows()

    def print_theorems() -> None:
        print("\n".join(run.verdict))
        print_rows(appendix)

    value = {**run.summary(), "appendix": [row.as_dict() for row in appendix]}
    _show(as_json, value, print_theorems)


def _model_keywords(model_options: list[str], device: str | None) -> dict[str, Any]:
    """Return how models are loaded, as keywords."""
    keywords = _read_pairs("--model-option", model_options)
    return {**keywords, "device": device} if device else keywords


def _read_pairs(flag: str, texts: list[str]) -> dict[str, Any]:
    """Read `NAME=VALUE` pairs; the function that takes them reads the values.

    >>> _read_pairs("--set", ["levels=0,1"])
    {'levels': '0,1'}
    """
    pairs: dict[str, Any] = {}
    for pair in texts:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise LayerscopeError(f"{flag} takes NAME=VALUE, not {pair!r}.")
        pairs[name.strip().replace("-", "_")] = value
    return pairs


def _default_folder(words: list[str]) -> Path:
    """Return the folder below `runs` that these words name."""
    return Path("runs") / "--".join(map(folder_name, words))


def _show(as_json: bool, value: Any, printer: Callable[[], Any]) -> None:
    """Print a result: as JSON, or as tables."""
    if as_json:
        print(json.dumps(plain(value), indent=2, ensure_ascii=False))
    else:
        printer()


def _draw(charts: list[Chart], title: str, out: Path, footnote: str = "") -> None:
    """Write charts as one figure, and say where it is."""
    from layerscope.report.charts import plot_charts

    out.parent.mkdir(parents=True, exist_ok=True)
    plot_charts(charts, title, footnote).save(str(out), ppi=150)
    _report_path(out)


def _report_path(path: Path | None, quiet: bool = False, next_command: str = "") -> None:
    """Print where a result was written, and the command that shows it."""
    if quiet:
        return
    print(printable(f"Written to {path}"), file=sys.stderr)
    if next_command:
        print(printable(f"Next: {next_command}"), file=sys.stderr)


def main() -> None:
    """Run the command; a user's mistake is one message on stderr and exit code 1."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    logging.getLogger("layerscope").setLevel(logging.INFO)
    try:
        app(prog_name="layerscope-paper")
    except LayerscopeError as error:
        print(f"layerscope-paper: {printable(str(error))}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("layerscope-paper: stopped. Run the same command again to resume.", file=sys.stderr)
        sys.exit(130)
