"""Probes, as people see them: accuracy by layer on the page, in figures and in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.core.charts import Chart, Figure, Line
from layerscope.core.statistics import INTERVAL, Interval
from layerscope.report.charts import plot_charts
from layerscope.report.section import Section
from layerscope.report.text import numeric_table, sparkline
from layerscope.report.words import PROBES_SAY, percent, probe_sentence
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.probing.run import ProbeRun

_TITLES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy"}


def section(run: ProbeRun) -> Section:
    """Return accuracy by layer: a chart per metric with a line per probe, and what the validation
    items choose."""
    manifest = run.manifest
    counts = manifest["counts"]
    data = manifest["data"]["name"]
    summaries = run.summary()["probes"]
    charts = []
    for metric in run.table["metric"].unique():
        lines = []
        for probe in run.probes:
            if _has(run, probe, metric):
                chosen = summaries[probe]["chosen_layer"]
                note = (chosen, f"chosen: layer {chosen}") if metric == "top1" else None
                curve = run.curve(probe, metric)
                blocks = manifest["model"]["n_blocks"]
                lines.append(Line.of(_title(probe), curve, scale=100, blocks=blocks, note=note))
        charts.append(Chart(_TITLES.get(metric, metric), lines, "%", PROBES_SAY))
    items = [f"{counts['train']} to train", f"{counts['validation']} to choose"]
    facts = {
        "kind": "probe",
        "final norm": manifest["conventions"]["final_norm"],
        "data": f"{data}, {counts['classes']} classes",
        "items": ", ".join([*items, f"{counts['test']} to judge"]),
        "seed": manifest["conventions"]["seed"],
        "precision": manifest["model"].get("dtype"),
        "layerscope": manifest.get("layerscope"),
    }
    words = [
        f"{_title(probe).capitalize()}: {probe_sentence(summaries[probe])}" for probe in run.probes
    ]
    return Section.of(
        run,
        f"Probes of {run.name} on {data}",
        words,
        charts=charts,
        tables={"Accuracy by layer": run.table},
        facts=facts,
    )


def plot_probes(run: ProbeRun, *, metric: str = "top1", x: str = "depth") -> Figure:
    """Return a chart per probe with its 95 % band; a filled point at the best layer, rings at those
    tied with it."""
    manifest = run.manifest
    limits = _limits(run.table[run.table["metric"] == metric])
    charts = []
    for probe in run.probes:
        curve = run.curve(probe, metric)
        tied = curve.loc[curve["tied_best"], "layer"].tolist()
        line = Line.of(run.name, curve, blocks=manifest["model"]["n_blocks"], tied=tied)
        charts.append(Chart(_title(probe), [line], _TITLES[metric], limits=limits))
    counts = manifest["counts"]
    title = (
        f"{manifest['data']['name']}: {counts['train']} training and {counts['test']} test items, "
        f"final_norm={manifest['conventions']['final_norm']}, 95 % bands"
    )
    return plot_charts(charts, title, x=x, columns=len(charts) if len(charts) < 4 else 2)


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the vertical axis.

    Layer 0 is left out where it is far below the others: a class token that has seen nothing yet is
    at chance.
    """
    lows, highs = (rows[name] for name in INTERVAL)
    low = float(lows[rows["layer"] > 0].min())
    high = float(highs.max())
    if lows.min() >= low - (high - low):
        low = min(low, float(lows.min()))
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def print_probes(run: ProbeRun, console: Console | None = None) -> None:
    """Print probes for a person."""
    console = console or Console()
    manifest = run.manifest
    model = manifest["model"]
    counts = manifest["counts"]
    conventions = manifest["conventions"]
    console.print(
        f"\n[bold]{escape(run.name)}[/]  {model['n_blocks']} blocks, width {model['width']}, "
        f"{model['family']} family  ·  [bold]{escape(str(manifest['data']['name']))}[/]  "
        f"{counts['classes']} classes, {counts['train']} items to train on, "
        f"{counts['validation']} to choose on, {counts['test']} to judge on\n"
        f"final_norm [bold]{conventions['final_norm']}[/]  ·  seed "
        f"{conventions['seed']}  ·  95 % intervals"
    )
    console.print(_layer_table(run, console.width))
    summaries = run.summary()["probes"]
    for probe in run.probes:
        curve = sparkline(run.curve(probe)["value"])
        sentence = probe_sentence(summaries[probe])
        console.print(f"{probe:>10}  {curve}  {sentence}", highlight=False)
    print_notes(console, manifest["warnings"])


def _layer_table(run: ProbeRun, width: int) -> Table:
    """Return accuracy by layer, a column per probe and metric; top-5 where there is room."""
    names = [(p, m) for p in run.probes for m in ("top1", "top5") if _has(run, p, m)]
    if len(names) * 19 + 8 > width:
        names = [(probe, metric) for probe, metric in names if metric == "top1"]
    headings = [f"{probe}\n{metric.replace('top', 'top-')}" for probe, metric in names]
    table = numeric_table("layer", *headings)
    curves = [run.curve(probe, metric) for probe, metric in names]
    for place, layer in enumerate(curves[0]["layer"]):
        cells = []
        for curve in curves:
            row = curve.iloc[place]
            accuracy = Interval.from_row(row)
            ends = f"{percent(accuracy.low)}–{percent(accuracy.high)}"
            cells.append(
                f"{percent(accuracy.value)} [dim]{ends}[/]{'*' if row['tied_best'] else ' '}"
            )
        table.add_row(str(int(layer)), *cells)
    table.caption = "* cannot be told from the best layer"
    table.caption_justify = "left"
    return table


def _title(probe: str) -> str:
    return "nearest neighbors" if probe == "knn" else f"{probe} probe"


def _has(run: ProbeRun, probe: str, metric: str) -> bool:
    return bool(((run.table["probe"] == probe) & (run.table["metric"] == metric)).any())
