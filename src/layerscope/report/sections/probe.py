"""Probes, as people see them: accuracy by layer on the page, in figures and in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.core.charts import Figure
from layerscope.core.statistics import INTERVAL, Interval
from layerscope.report.charts import plot_charts, styles
from layerscope.report.sources import Block, Chart, Line, Section, of_run
from layerscope.report.text import numeric_table, sparkline
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.probing.run import ProbeRun


_TITLES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy"}
_PROBES = {"knn": "nearest neighbors"}


def from_probes(run: ProbeRun) -> Block:
    """Accuracy by layer: a chart per metric with a line per probe, and what the validation items
    choose."""
    m = run.manifest
    model, c, counts = m["model"], m["conventions"], m["counts"]
    by_probe = run.summary()["probes"]
    charts = []
    for metric in dict.fromkeys(run.table["metric"]):
        lines = []
        for probe in run.probes:
            if _holds(run, probe, metric):
                curve = run.curve(probe, metric)
                chosen = by_probe[probe]["chosen_layer"]
                note = (chosen, f"chosen: layer {chosen}") if metric == "top1" else None
                title = _PROBES.get(probe, f"{probe} probe")
                lines.append(Line.of(title, curve, scale=100, blocks=model["n_blocks"], note=note))
        charts.append(
            Chart(
                _TITLES.get(metric, metric),
                lines,
                "%",
                "Bands are 95 % intervals. Layers are chosen on validation items and judged on test items.",
            )
        )
    facts = {
        "kind": "probe",
        "final norm": c["final_norm"],
        "data": f"{m['data']['name']}, {counts['classes']} classes",
        "items": f"{counts['train']} to train, {counts['validation']} to choose, {counts['test']} to judge",
        "seed": c["seed"],
        "precision": model.get("dtype"),
        "layerscope": m.get("layerscope"),
    }
    names = [_PROBES.get(probe, f"{probe} probe") for probe in run.probes]
    words = [
        f"{name[:1].upper()}{name[1:]}: {sentence(run, probe)}"
        for name, probe in zip(names, run.probes, strict=True)
    ]
    return Block(
        "probe",
        f"Probes of {run.name} on {m['data']['name']}",
        run.name,
        words,
        charts,
        {"Accuracy by layer": run.table},
        facts=facts,
        **of_run(run),
    )


SECTION = Section("probe", from_probes)


def plot_probes(run: ProbeRun, *, metric: str = "top1", x: str = "depth") -> Figure:
    """Return a chart per probe with its 95 % band; a filled point at the best layer, rings at those
    tied with it."""
    model, charts = run.manifest["model"], []
    (look,) = styles([(model["family"], run.name)])
    limits = _limits(run.table[run.table["metric"] == metric])
    for probe in run.probes:
        curve = run.curve(probe, metric)
        tied = curve.loc[curve["tied_best"], "layer"].tolist()
        line = Line.of(run.name, curve, blocks=model["n_blocks"], look=look, tied=tied)
        title = _PROBES.get(probe, f"{probe} probe")
        charts.append(Chart(title, [line], _TITLES[metric], limits=limits))
    counts, norm = run.manifest["counts"], run.manifest["conventions"]["final_norm"]
    items = f"{counts['train']} training and {counts['test']} test items"
    title = f"{run.manifest['data']['name']}: {items}, final_norm={norm}, 95 % bands"
    return plot_charts(charts, title, x=x, columns=len(charts) if len(charts) < 4 else 2)


def _limits(rows: pd.DataFrame) -> tuple[float, float]:
    """Return the ends of the vertical axis. Layer 0 is left out where it is far below the others: a
    class token that has seen nothing yet is at chance."""
    lows, highs = (rows[name] for name in INTERVAL)
    low, high = float(lows[rows["layer"] > 0].min()), float(highs.max())
    if lows.min() >= low - (high - low):
        low = min(low, float(lows.min()))
    return low - 0.05 * (high - low), high + 0.05 * (high - low)


def print_probes(run: ProbeRun, console: Console | None = None) -> None:
    """Print probes for a person."""
    console = console or Console()
    console.print(_headline(run))
    console.print(_layers(run, console.width))
    for probe in run.probes:
        console.print(
            f"{probe:>10}  {sparkline(run.curve(probe)['value'])}  {sentence(run, probe)}",
            highlight=False,
        )
    print_notes(console, run.manifest["warnings"])


def sentence(run: ProbeRun, probe: str) -> str:
    """What one kind of probe found: the layer that the validation items choose, judged on the test
    items."""
    summary = run.summary()["probes"][probe]
    chosen, last = summary["chosen_layer"], summary["last_layer"]
    highest = f"highest at layer {summary['best_layer']} ({_percent(summary['best'])})"
    if chosen == last:
        return (
            f"{highest}; the validation items choose the last layer: {_percent(summary['last'])}."
        )
    low, high = summary["gain_ci"]
    sure = "better than" if low > 0 else "worse than" if high < 0 else "not surely better than"
    return (
        f"{highest}; the validation items choose layer {chosen}: {_percent(summary['chosen'])}, {sure} the last layer's "
        f"{_percent(summary['last'])} ({100 * summary['gain']:+.1f}, {100 * low:+.1f} to {100 * high:+.1f})."
    )


def _headline(run: ProbeRun) -> str:
    model, conventions, counts = (
        run.manifest["model"],
        run.manifest["conventions"],
        run.manifest["counts"],
    )
    name, data = escape(str(model["name"])), escape(str(run.manifest["data"]["name"]))
    return (
        f"\n[bold]{name}[/]  {model['n_blocks']} blocks, width {model['width']}, {model['family']} family  ·  "
        f"[bold]{data}[/]  {counts['classes']} classes, {counts['train']} items to train on, "
        f"{counts['validation']} to choose on, {counts['test']} to judge on\n"
        f"final_norm [bold]{conventions['final_norm']}[/]  ·  seed {conventions['seed']}  ·  "
        "95 % intervals"
    )


def _layers(run: ProbeRun, width: int) -> Table:
    shown = [
        (probe, metric)
        for probe in run.probes
        for metric in ("top1", "top5")
        if _holds(run, probe, metric)
    ]
    if len(shown) * 19 + 8 > width:
        shown = [(probe, metric) for probe, metric in shown if metric == "top1"]
    table = numeric_table(
        "layer", *(f"{probe}\n{metric.replace('top', 'top-')}" for probe, metric in shown)
    )
    curves = [run.curve(probe, metric) for probe, metric in shown]
    for i in range(len(curves[0])):
        cells = []
        for curve in curves:
            row = curve.iloc[i]
            mark, found = "*" if row["tied_best"] else " ", Interval.from_row(row)
            cells.append(
                f"{_percent(found.value)} [dim]{_percent(found.low)}–{_percent(found.high)}[/]{mark}"
            )
        table.add_row(str(int(curves[0]["layer"].iloc[i])), *cells)
    table.caption = "* cannot be told from the best layer"
    table.caption_justify = "left"
    return table


def _holds(run: ProbeRun, probe: str, metric: str) -> bool:
    return bool(((run.table["probe"] == probe) & (run.table["metric"] == metric)).any())


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
