"""Probes in the terminal: a table by layer, a small curve per probe, and what they show in words."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from layerscope.probing.run import ProbeRun
from layerscope.report.terminal.profile import sparkline


def print_probes(run: ProbeRun, console: Console | None = None) -> None:
    """Print probes for a person."""
    console = console or Console()
    console.print(_headline(run))
    console.print(_layers(run, console.width))
    for probe in run.probes:
        console.print(f"{probe:>10}  {sparkline(run.curve(probe)['value'])}  {sentence(run, probe)}", highlight=False)
    for warning in run.manifest["warnings"]:
        console.print(f"[yellow]note[/] {escape(warning)}")


def sentence(run: ProbeRun, probe: str) -> str:
    """What one kind of probe found: the layer that the validation items choose, judged on the test items."""
    found = run.summary()["probes"][probe]
    chosen, last = found["chosen_layer"], found["last_layer"]
    highest = f"highest at layer {found['best_layer']} ({_percent(found['best'])})"
    if chosen == last:
        return f"{highest}; the validation items choose the last layer: {_percent(found['last'])}."
    low, high = found["gain_ci"]
    sure = "better than" if low > 0 else "worse than" if high < 0 else "not surely better than"
    return (
        f"{highest}; the validation items choose layer {chosen}: {_percent(found['chosen'])}, {sure} the last layer's "
        f"{_percent(found['last'])} ({100 * found['gain']:+.1f}, {100 * low:+.1f} to {100 * high:+.1f})."
    )


def _headline(run: ProbeRun) -> str:
    model, conventions, counts = run.manifest["model"], run.manifest["conventions"], run.manifest["counts"]
    kept = ", ".join(f"{name} {how}" for name, how in conventions["kept"]["states"].items())
    name, data = escape(str(model["name"])), escape(str(run.manifest["data"]["name"]))
    return (
        f"\n[bold]{name}[/]  {model['n_blocks']} blocks, width {model['width']}, {model['family']} family  ·  "
        f"[bold]{data}[/]  {counts['classes']} classes, {counts['train']} items to train on, "
        f"{counts['validation']} to choose on, {counts['test']} to judge on\n"
        f"final_norm [bold]{conventions['final_norm']}[/]  ·  states kept: {kept}  ·  seed {conventions['seed']}  ·  "
        "95 % intervals"
    )


def _layers(run: ProbeRun, width: int) -> Table:
    shown = [(probe, metric) for probe in run.probes for metric in ("top1", "top5") if _holds(run, probe, metric)]
    if len(shown) * 19 + 8 > width:
        shown = [(probe, metric) for probe, metric in shown if metric == "top1"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("layer", justify="right", no_wrap=True)
    for probe, metric in shown:
        table.add_column(f"{probe}\n{metric.replace('top', 'top-')}", justify="right", no_wrap=True)
    curves = [run.curve(probe, metric) for probe, metric in shown]
    for i in range(len(curves[0])):
        cells = []
        for curve in curves:
            row = curve.iloc[i]
            mark = "*" if row["tied_best"] else " "
            cells.append(f"{_percent(row['value'])} [dim]{_percent(row['ci_low'])}–{_percent(row['ci_high'])}[/]{mark}")
        table.add_row(str(int(curves[0]["layer"].iloc[i])), *cells)
    table.caption = "* cannot be told from the best layer"
    table.caption_justify = "left"
    return table


def _holds(run: ProbeRun, probe: str, metric: str) -> bool:
    return bool(((run.table["probe"] == probe) & (run.table["metric"] == metric)).any())


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"
