"""Profiles, as people see them: curves on the page and in figures, a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.core.charts import Figure
from layerscope.core.conventions import Reading
from layerscope.core.formatting import count_of
from layerscope.core.sites import whole_layers
from layerscope.core.statistics import INTERVAL, Interval
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
from layerscope.report.sources import Block, Chart, Curves, Line, Section, of_run, weights_text
from layerscope.report.text import curve_ends, number, numeric_table, sparkline
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.profiling.run import Profile


def from_run(run: Profile) -> Curves:
    """A profile."""
    m = run.manifest
    model, c, counts = m["model"], m["conventions"], m["counts"]
    reading = Reading.of(m)
    facts = {
        "kind": "profile",
        "final norm": reading.final_norm if reading.has_norm else "none in this model",
        "texts": f"{m['corpus']['name']}, {count_of(counts['prompts'], c.get('items', 'prompts'))}",
        "corpus": str(m["corpus"].get("fingerprint", ""))[:12],
        **_lengths(c, counts),
        "rows": c["metrics"]["rows"],
        "α": c["metrics"]["alpha"],
        "pooling": c.get("pooling"),
        "views": f"{c['views']}, {c['augmenter']}" if c.get("views") else "none",
        "other options": _other_options(c["metrics"]),
        "seed": c["seed"],
        "intervals": c.get("intervals"),
        "weights": weights_text(model),
        "precision": model.get("dtype"),
        "layerscope": m.get("layerscope"),
    }
    name, blocks, norm = str(model["name"]), int(model["n_blocks"]), str(c["final_norm"])
    return Curves(name, blocks, norm, run.table, facts=facts, **of_run(run))


SECTION = Section("profile", from_run)


def _other_options(metrics: dict[str, Any]) -> str | None:
    """The metrics' options that are not the defaults, without those that have a row of their own."""
    usual = {**asdict(Options()), **{name: metrics.get(name) for name in ("rows", "alpha", "seed")}}
    changed = [f"{k}={v}" for k, v in metrics.items() if k in usual and v != usual[k]]
    return ", ".join(changed) or None


def _lengths(c: dict[str, Any], counts: dict[str, Any]) -> dict[str, Any]:
    """How long texts are and how many were cut; of other items, which tokens are read and how many
    there are."""
    if "items" in c:
        attention = {"attention": c["attention"]} if "attention" in c else {}
        return {"tokens": f"{_token_count(counts)} each: {c['tokens']}", **attention}
    return {
        "longest text": f"{c['max_length']} tokens",
        "cut texts": f"{counts['truncated']} of {counts['prompts']}",
    }


def plot_profiles(
    runs: Sequence[Profile | Curves],
    metrics: Sequence[str] | None = None,
    *,
    x: str = "depth",
    columns: int = 4,
) -> Figure:
    """Return a chart per metric, one line per run with its 95 % band; dotted: the sink token
    dropped. `x` is depth or layer."""
    curves = [run if isinstance(run, Curves) else from_run(run) for run in runs]
    names = _names(curves, metrics, x)
    charts = profile_charts(curves, names)
    return plot_charts(charts, _title(curves, names), columns=columns, x=x, alike=False)


def profile_charts(curves: Sequence[Curves], names: Sequence[str]) -> list[Chart]:
    """A chart per metric, with a line per run and one without the sink token beside it."""
    charts, known = [], metrics()
    looks = styles([(run.family, run.model) for run in curves])
    for name in names:
        lines = []
        for run, look in zip(curves, looks, strict=True):
            kept, dropped = (curve_of(run.table, name, sink) for sink in ("keep", "drop"))
            valley = run.valley if name == "prompt_entropy" else None
            note = (
                (valley.layer, f"layer {valley.layer}{': the sink' if valley.is_sink else ''}")
                if valley
                else None
            )
            label = f"{run.label or run.model} ({run.n_blocks} blocks), final_norm={run.final_norm}"
            lines += (
                [Line.of(label, kept, blocks=run.n_blocks, look=look, note=note)]
                if len(kept)
                else []
            )
            lines += (
                [
                    Line.of(
                        f"{label}, sink dropped",
                        dropped,
                        blocks=run.n_blocks,
                        look=look,
                        dropped=True,
                    )
                ]
                if len(dropped)
                else []
            )
        charts.append(
            Chart(
                metric_title(name),
                lines,
                known[name].info.unit if name in known else "",
                log=on_log_scale(name),
            )
        )
    return charts


def default_metrics(curves: Sequence[Curves]) -> list[str]:
    """What is drawn when nothing is asked for."""
    measured = list(dict.fromkeys(m for run in curves for m in run.table["metric"]))
    return main_metrics(measured) or measured


def _names(curves: Sequence[Curves], wanted: Sequence[str] | None, x: str) -> list[str]:
    if x not in ("depth", "layer"):
        raise UnknownNameError("x axis", x, ["depth", "layer"])
    measured = list(dict.fromkeys(m for run in curves for m in run.table["metric"]))
    if not measured:
        raise LayerscopeError("there are no runs with metrics to draw.")
    names = list(wanted) if wanted else default_metrics(curves)
    for name in names:
        if name not in measured:
            get_metric(name)  # an unknown name gets its own error
            raise UnknownNameError("metric in these runs", name, measured)
    return names


def curve_of(table: pd.DataFrame, metric: str, sink: str) -> pd.DataFrame:
    """One metric over the layers (over the sites inside the blocks where a run has only those)."""
    rows = table[
        (table["metric"] == metric) & (table["normalization"] == "raw") & (table["sink"] == sink)
    ]
    layers = whole_layers(rows)
    return layers if (layers["site"] != "embed").any() else rows


def _title(runs: Sequence[Curves], names: Sequence[str]) -> str:
    known = metrics()
    views = any(name in known and known[name].info.level == "views" for name in names)
    facts = []
    for run in runs:
        f = run.facts
        parts = [str(f["texts"])]
        parts += [f"up to {f['longest text']}"] if "longest text" in f else []
        parts += [f"α = {f['α']}", f"rows {f['rows']}"] + (
            [f"views {f['views']}"] if views and "views" in f else []
        )
        parts += ["95 % bands"] if run.table[INTERVAL[0]].notna().any() else []
        facts.append(", ".join(parts))
    return "\n".join(dict.fromkeys(facts))


def curves_block(curves: Curves) -> Block:
    """A profile where it is shown alone: where the valley is, the main metrics as curves, the ends
    of all of them."""
    title = f"{curves.model}, final_norm {curves.final_norm}"
    if curves.run is not None:
        m = curves.run.manifest
        about = f"on {m['corpus']['name']}: {describe_prompts(m)}, final_norm {curves.final_norm}"
        title = f"{curves.model} {about}, {m['conventions']['views']} views"
    rows = _curve_rows(curves.table)
    table = pd.DataFrame(
        rows, columns=["metric", "first → last layer", "lowest", "highest", "last"]
    )
    words = [curves.valley.sentence()] if curves.valley is not None else []
    charts = profile_charts([curves], default_metrics([curves]))
    return Block(
        "profile",
        title,
        curves.model,
        words,
        charts,
        {"": table},
        warnings=curves.warnings,
        inline=[""],
    )


def print_run(run: Profile, console: Console | None = None) -> None:
    """Print a profile for a person."""
    console = console or Console()
    console.print(_headline(run))
    console.print(_layer_table(run, console.width))
    console.print(_curves(run, console.width))
    valley = entropy_valley(run.table)
    if valley is not None:
        console.print(escape(valley.sentence()))
    elif "prompt_entropy" in set(run.table["metric"]):
        console.print(
            "Prompt entropy has no valley: no dip is clear of noise and at least 5 % below both its shoulders."
        )
    print_notes(console, run.manifest["warnings"])


def describe_prompts(manifest: dict[str, Any]) -> str:
    """How many prompts a profile has and how long they are."""
    counts, conventions = manifest["counts"], manifest["conventions"]
    if "items" in conventions:
        read = str(conventions["tokens"]).partition(",")[0]
        count = count_of(counts["prompts"], conventions["items"])
        return f"{count} of {_token_count(counts)} tokens ({read})"
    return f"{count_of(counts['prompts'], 'prompts')}, up to {conventions['max_length']} tokens"


def _token_count(counts: dict[str, Any]) -> str:
    shortest, longest = counts["tokens"]["shortest"], counts["tokens"]["longest"]
    return f"{longest}" if shortest == longest else f"{shortest} to {longest}"


def _headline(run: Profile) -> str:
    m = run.manifest
    model, conventions = m["model"], m["conventions"]
    alpha = conventions["metrics"]["alpha"]
    return (
        f"\n[bold]{escape(str(model['name']))}[/]  {model['n_blocks']} blocks, width {model['width']}, {model['family']} family, "
        f"{model['dtype']}  ·  [bold]{escape(str(m['corpus']['name']))}[/]  {describe_prompts(m)}\n"
        f"final_norm [bold]{conventions['final_norm']}[/]  ·  rows {conventions['metrics']['rows']}  ·  α = {alpha}  ·  "
        f"{conventions['views']} views  ·  seed {conventions['seed']}  ·  95 % intervals"
    )


def _layer_table(run: Profile, width: int) -> Table:
    """Layers down, metrics across; intervals where the terminal is wide enough for them."""
    raw = run.table[run.table["normalization"] == "raw"]
    known = metrics()
    shown = [
        (known[metric].info.heading if sink == "keep" else "sink\ndropped", rows.set_index("site"))
        for metric, sink in shown_series(raw["metric"])
        if len(rows := raw[(raw["metric"] == metric) & (raw["sink"] == sink)])
    ]
    sites = raw[["site", "layer"]].drop_duplicates()
    inside = bool(sites["site"].str.count(r"\.").gt(1).any())
    wide = width >= 12 + 16 * len(shown)
    table = numeric_table(
        "layer", *(["site"] if inside or wide else []), *(heading for heading, _ in shown)
    )
    for site, layer in sites.itertuples(index=False):
        cells = []
        for _, column in shown:
            found = Interval.from_row(column.loc[site])
            spread = (
                f" [dim]±{number((found.high - found.low) / 2)}[/]" if wide and found.known else ""
            )
            cells.append(number(found.value) + spread)
        table.add_row(str(layer), *([str(site)] if inside or wide else []), *cells)
    return table


def _curves(run: Profile, width: int) -> Table:
    """One line per metric: its curve and its extremes."""
    table = numeric_table("metric", "embed → last layer", "lowest", "highest")
    for name, *cells, _ in _curve_rows(run.table, 28 if width < 100 else 48):
        table.add_row("  … sink dropped" if name.endswith("sink dropped") else name, *cells)
    return table


def _curve_rows(table: pd.DataFrame, most: int | None = None) -> list[list[str]]:
    """Return a row per metric, with and without the sink: its curve in at most so many characters,
    its extremes and its last value."""
    rows = []
    for metric in dict.fromkeys(table["metric"]):
        for sink in ("keep", "drop"):
            curve = curve_of(table, metric, sink)
            known = curve.dropna(subset=["value"])
            if len(known):
                ends = curve_ends(known["layer"], known["value"])
                last = number(float(known["value"].iloc[-1]))
                rows.append(
                    [metric_title(metric, sink), sparkline(curve["value"], most), *ends, last]
                )
            elif sink == "keep":
                rows.append([metric_title(metric), "undefined at every layer", "", "", ""])
    return rows
