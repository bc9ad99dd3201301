"""A profile in the terminal: a table by layer, a small curve per metric, and what they show in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.metrics import metrics
from layerscope.profiling.valley import find_valley

if TYPE_CHECKING:
    from layerscope.profiling.run import Run

_BARS = "▁▂▃▄▅▆▇█"

# (metric, sink, heading) in reading order; those a run does not hold are left out
_COLUMNS = [
    ("prompt_entropy", "keep", "prompt\nentropy"),
    ("prompt_entropy", "drop", "sink\ndropped"),
    ("curvature", "keep", "curv-\nature"),
    ("dataset_entropy", "keep", "dataset\nentropy"),
    ("effective_rank", "keep", "eff.\nrank"),
    ("infonce", "keep", "Info-\nNCE"),
    ("lidar", "keep", "LiDAR"),
    ("dime", "keep", "DiME"),
    ("sink_ratio", "keep", "sink\nratio"),
]


def number(value: float) -> str:
    """A number with as many digits as a reader needs."""
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 0.1 or size == 0:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 else f"{value:.1e}"


def sparkline(values: Any) -> str:
    """A curve in one line of text; gaps where a value is undefined.

    >>> sparkline([0, 1, 2, 3])
    '▁▃▆█'
    """
    array = np.asarray(values, dtype=float)
    finite = array[np.isfinite(array)]
    if not len(finite):
        return " " * len(array)
    low, span = float(finite.min()), float(finite.max() - finite.min())
    if span == 0:
        return "".join(_BARS[3] if math.isfinite(v) else " " for v in array)
    return "".join(_BARS[round((v - low) / span * 7)] if math.isfinite(v) else " " for v in array)


def print_run(run: Run, console: Console | None = None) -> None:
    """Print a profile for a person."""
    console = console or Console()
    console.print(_headline(run))
    console.print(_layer_table(run, console.width))
    console.print(_curves(run, console.width))
    valley = find_valley(run.table)
    if valley is not None:
        console.print(escape(valley.sentence()))
    elif "prompt_entropy" in set(run.table["metric"]):
        console.print("Prompt entropy has no valley: it does not dip below both its ends by a tenth.")
    for warning in run.manifest["warnings"]:
        console.print(f"[yellow]note[/] {escape(warning)}")


def how_long(manifest: dict[str, Any]) -> str:
    """How many prompts a profile has and how long they are."""
    counts, conventions = manifest["counts"], manifest["conventions"]
    if "image_tokens" in conventions:
        return f"{counts['prompts']} images of {counts['tokens']['longest']} tokens ({conventions['image_tokens']})"
    return f"{counts['prompts']} prompts, up to {conventions['max_length']} tokens"


def _headline(run: Run) -> str:
    m = run.manifest
    model, conventions = m["model"], m["conventions"]
    alpha = conventions["metrics"]["alpha"]
    return (
        f"\n[bold]{escape(str(model['name']))}[/]  {model['n_blocks']} blocks, width {model['width']}, {model['family']} family, "
        f"{model['dtype']}  ·  [bold]{escape(str(m['corpus']['name']))}[/]  {how_long(m)}\n"
        f"final_norm [bold]{conventions['final_norm']}[/]  ·  rows {conventions['metrics']['rows']}  ·  α = {alpha}  ·  "
        f"{conventions['views']} views  ·  seed {conventions['seed']}  ·  preset {conventions['preset']}  ·  95 % intervals"
    )


def _layer_table(run: Run, width: int) -> Table:
    """Layers down, metrics across; intervals where the terminal is wide enough for them."""
    held = run.table[run.table["normalization"] == "raw"]
    shown = [
        (heading, rows.set_index("site"))
        for metric, sink, heading in _COLUMNS
        if len(rows := held[(held["metric"] == metric) & (held["sink"] == sink)])
    ]
    sites = held[["site", "layer"]].drop_duplicates()
    inside = bool(sites["site"].str.count(r"\.").gt(1).any())
    wide = width >= 12 + 16 * len(shown)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("layer", justify="right", no_wrap=True)
    if inside or wide:
        table.add_column("site", no_wrap=True)
    for heading, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for site, layer in sites.itertuples(index=False):
        cells = []
        for _, column in shown:
            row = column.loc[site]
            half = float(row["ci_high"] - row["ci_low"]) / 2
            spread = f" [dim]±{number(half)}[/]" if wide and math.isfinite(half) else ""
            cells.append(number(float(row["value"])) + spread)
        table.add_row(str(layer), *([str(site)] if inside or wide else []), *cells)
    return table


def _curves(run: Run, width: int) -> Table:
    """One line per metric: its curve, its extremes and, where there is room, what a higher value means."""
    held = set(run.table["metric"])
    wide = width >= 150
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("metric", no_wrap=True)
    table.add_column("embed → last layer", no_wrap=True)
    for heading in ("lowest", "highest"):
        table.add_column(heading, justify="right", no_wrap=True)
    if wide:
        table.add_column("a higher value means", style="dim")
    for name, metric in metrics().items():
        if name not in held:
            continue
        for sink in metric.info.sinks:
            curve = run.curve(name, sink=sink)
            values, at = curve["value"].to_numpy(), curve["layer"].to_numpy()
            label = name if sink == "keep" else "  … sink dropped"
            if not np.isfinite(values).any():
                table.add_row(label, "undefined at every layer")
                continue
            low, high = int(np.nanargmin(values)), int(np.nanargmax(values))
            extremes = [f"{number(values[i])} @ {at[i]:<2}" for i in (low, high)]
            meaning = [metric.info.higher_means if sink == "keep" else ""] if wide else []
            table.add_row(label, _fitted(values, 28 if width < 100 else 48), *extremes, *meaning)
    return table


def _fitted(values: np.ndarray, most: int) -> str:
    """A sparkline of at most `most` characters: deep models are sampled evenly, ends included."""
    if len(values) > most:
        values = values[np.linspace(0, len(values) - 1, most).round().astype(int)]
    return sparkline(values)
