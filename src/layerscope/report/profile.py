"""Profiles, as people see them: curves on the page and in figures, a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.choose.choice import Choice
from layerscope.choose.select import select
from layerscope.core.charts import Chart, Figure, Line, Style
from layerscope.core.identity import Reading
from layerscope.core.sites import part_of, whole_layers
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.metrics import (
    Options,
    get_metric,
    main_metrics,
    metric_title,
    metrics,
    on_log_scale,
    shown_series,
)
from layerscope.profiling.run import entropy_valley
from layerscope.report.charts import plot_charts, styles
from layerscope.report.section import Section
from layerscope.report.words import (
    NO_VALLEY,
    UNDEFINED,
    curve_ends,
    describe_prompts,
    number,
    numeric_table,
    sparkline,
    token_count,
)
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.profiling.run import Profile


def section(run: Profile) -> Section:
    """Return a profile with its valley, the main metrics as curves, and the ends of all of them."""
    manifest = run.manifest
    conventions = manifest["conventions"]
    title = (
        f"{run.name} on {manifest['corpus']['name']}: {describe_prompts(manifest)}, "
        f"final_norm {conventions['final_norm']}, {conventions['views']} views"
    )
    valley = entropy_valley(run.table)
    names = ["metric", "first → last layer", "lowest", "highest", "last"]
    profile = Section.of(
        run,
        title,
        [] if valley is None else [valley.sentence()],
        tables={"Metrics": pd.DataFrame(_curve_rows(run.table), columns=names)},
        inline=["Metrics"],
        facts=_facts(run),
        blocks=int(manifest["model"]["n_blocks"]),
        choice=choice_of(run),
        rows=run.table,
    )
    profile.charts = [metric_chart([profile], name) for name in _measured([profile], main=True)]
    return profile


def choice_of(run: Any) -> Choice | None:
    """Return what `select` chooses from a run; None where the run allows no choice."""
    try:
        return select(run)
    except LayerscopeError:
        return None


def _facts(run: Profile) -> dict[str, object]:
    """Return the conventions of a profile."""
    manifest = run.manifest
    conventions = manifest["conventions"]
    counts = manifest["counts"]
    options = conventions["metrics"]
    reading = Reading.of(manifest)
    views = conventions.get("views")
    defaults = {name: v for name, v in asdict(Options()).items() if name not in ("rows", "alpha")}
    changed = [f"{k}={v}" for k, v in options.items() if k in defaults and v != defaults[k]]
    length = f"{conventions.get('max_length')} tokens"
    if "items" in conventions:
        length = f"{token_count(counts)} each: {conventions['tokens']}"
    items = conventions.get("items", "prompts")
    return {
        "kind": "profile",
        "final norm": reading.final_norm if reading.has_norm else "none in this model",
        "texts": f"{manifest['corpus']['name']}, {counts['prompts']} {items}",
        "corpus": str(manifest["corpus"].get("fingerprint", ""))[:12],
        "longest text": length,
        "rows": options["rows"],
        "α": options["alpha"],
        "pooling": conventions.get("pooling"),
        "views": f"{views}, {conventions['augmenter']}" if views else "none",
        "other options": ", ".join(changed) or None,
        "seed": conventions["seed"],
        "precision": manifest["model"].get("dtype"),
        "layerscope": manifest.get("layerscope"),
    }


def plot_profiles(
    runs: Sequence[Profile], metrics: Sequence[str] | None = None, *, x: str = "depth"
) -> Figure:
    """Return a chart per metric, one line per run with its 95 % band; dotted: the sink token
    dropped. `x` is depth or layer."""
    if x not in ("depth", "layer"):
        raise UnknownNameError("x axis", x, ["depth", "layer"])
    sections = [section(run) for run in runs]
    measured = _measured(sections)
    names = list(metrics) if metrics else _measured(sections, main=True)
    for name in names:
        if name not in measured:
            get_metric(name)  # an unknown name gets its own error
            raise UnknownNameError("metric in these runs", name, measured)
    for run in sections:
        run.label = f"{run.model} ({run.blocks} blocks), final_norm={run.facts['final norm']}"
    charts = [metric_chart(sections, name, inner=False) for name in names]
    titles = [
        f"{run.facts['texts']}, up to {run.facts['longest text']}, α = {run.facts['α']}, rows "
        f"{run.facts['rows']}, views {run.facts['views']}, 95 % bands"
        for run in sections
    ]
    return plot_charts(charts, "\n".join(dict.fromkeys(titles)), x=x, alike=False)


def _measured(sections: Sequence[Section], main: bool = False) -> list[str]:
    """Return the names of the metrics of profiles: all, or the main ones if there are any."""
    names = list(dict.fromkeys(name for run in sections for name in run.rows["metric"]))
    return (main_metrics(names) or names) if main else names


def metric_chart(sections: Sequence[Section], metric: str, inner: bool = True) -> Chart:
    """Return one metric of profiles: a line per run and sink setting, and per part of the block
    with `inner`."""
    info = metrics()[metric].info if metric in metrics() else None
    looks = styles([run.model for run in sections])
    lines: list[Line] = []
    for run, look in zip(sections, looks, strict=True):
        for line in _lines(run, metric, look, inner):
            # runs of one model have the same note at the same place
            is_noted = line.note in [earlier.note for earlier in lines]
            lines.append(replace(line, note=None) if is_noted else line)
    says = f"Higher: {info.higher_means}." if info and info.higher_means else ""
    unit = info.unit if info else ""
    return Chart(info.title if info else metric, lines, unit, says, log=on_log_scale(metric))


def _lines(profile: Section, metric: str, look: Style, inner: bool) -> list[Line]:
    rows = profile.rows
    rows = rows[(rows["metric"] == metric) & (rows["normalization"] == "raw")]
    sinks = [sink for sink in ("keep", "drop") if (rows["sink"] == sink).any()]
    places = rows["site"].map(lambda site: part_of(str(site)) or "")
    valley = entropy_valley(profile.rows) if metric == "prompt_entropy" else None
    label = profile.label or profile.model
    lines = []
    # a run may have nothing but the sites inside the blocks
    for place in places.unique() if inner or "" not in set(places) else [""]:
        for sink in sinks:
            curve = rows[(places == place) & (rows["sink"] == sink)]
            if not len(curve):
                continue
            note = None
            if valley is not None and sink == "keep" and not place:
                note = (valley.layer, f"layer {valley.layer}{': the sink' * bool(valley.is_sink)}")
            tags = {"run": profile.label, "part": place, "norm": str(profile.facts["final norm"])}
            if len(sinks) > 1:
                tags["sink"] = sink
            lines.append(
                Line.of(
                    label if sink == "keep" else f"{label}, sink dropped",
                    curve,
                    blocks=profile.blocks,
                    look=look,
                    note=note,
                    dropped=sink == "drop",
                    tags=tags,
                )
            )
    return lines


def print_run(run: Profile, console: Console | None = None) -> None:
    """Print a profile for a person."""
    console = console or Console()
    console.print(f"\n[bold]{escape(section(run).title)}[/]")
    console.print(_layer_table(run))
    table = numeric_table("metric", "embed → last layer", "lowest", "highest")
    for name, *cells, _ in _curve_rows(run.table, 28 if console.width < 100 else 48):
        table.add_row("  … sink dropped" if name.endswith("sink dropped") else name, *cells)
    console.print(table)
    valley = entropy_valley(run.table)
    if valley is not None:
        console.print(escape(valley.sentence()))
    elif "prompt_entropy" in set(run.table["metric"]):
        console.print(NO_VALLEY)
    print_notes(console, run.manifest["warnings"])


def _layer_table(run: Profile) -> Table:
    """Return layers down, metrics across."""
    raw = run.table[run.table["normalization"] == "raw"]
    columns = {}
    for metric, sink in shown_series(raw["metric"]):
        rows = raw[(raw["metric"] == metric) & (raw["sink"] == sink)]
        if len(rows):
            heading = metrics()[metric].info.heading if sink == "keep" else "sink\ndropped"
            columns[metric, sink] = (heading, rows.set_index("site"))
    sites = raw[["site", "layer"]].drop_duplicates()
    has_sites = bool(sites["site"].str.count(r"\.").gt(1).any())
    headings = [heading for heading, _ in columns.values()]
    table = numeric_table("layer", *(["site"] if has_sites else []), *headings)
    for site, layer in sites.itertuples(index=False):
        cells = [str(layer), str(site)] if has_sites else [str(layer)]
        cells += [number(float(column["value"][site])) for _, column in columns.values()]
        table.add_row(*cells)
    return table


def _curve_rows(table: pd.DataFrame, most: int | None = None) -> list[list[str]]:
    """Return a row per metric, with and without the sink: its curve in at most so many characters,
    its extremes and its last value."""
    rows = []
    raw = table[table["normalization"] == "raw"]
    for metric in dict.fromkeys(table["metric"]):
        for sink in ("keep", "drop"):
            curve = raw[(raw["metric"] == metric) & (raw["sink"] == sink)]
            layers = whole_layers(curve)
            curve = layers if (layers["site"] != "embed").any() else curve
            defined = curve.dropna(subset=["value"])
            if len(defined):
                ends = curve_ends(defined["layer"], defined["value"])
                last = number(float(defined["value"].iloc[-1]))
                line = sparkline(curve["value"], most)
                rows.append([metric_title(metric, sink), line, *ends, last])
            elif sink == "keep":
                rows.append([metric_title(metric), UNDEFINED, "", "", ""])
    return rows
