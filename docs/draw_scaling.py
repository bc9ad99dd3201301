"""Draw docs/images/scaling-*.png, one picture per axis, from benchmarks/results/scaling: `python
docs/draw_scaling.py`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.report.drawing import COLORS, new_figure, style_axis

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/scaling"
sys.path.insert(0, str(ROOT / "benchmarks"))

import cost_model  # noqa: E402 - benchmarks are scripts beside each other, not a package
from cost_model import Fit, Line, Point  # noqa: E402

PROFILE, BARE, FAINT = COLORS[0], COLORS[1], "#8a8f98"


@dataclass(frozen=True)
class Axis:
    """One picture: the size that is varied, and what the picture says of it. `curves` are axes of
    the results and their names."""

    size: str
    label: str
    title: str
    curves: dict[str, str]


AXES = [
    Axis(
        "prompts",
        "prompts",
        "Prompts",
        {
            "prompts": "128 tokens, 12 blocks, width 1,024",
            "million": "16 tokens, 4 blocks, width 256",
        },
    ),
    Axis(
        "tokens",
        "tokens per prompt (as many prompts as make 262,144 tokens)",
        "Tokens",
        {"tokens": ""},
    ),
    Axis("width", "width of the model", "Width", {"width": ""}),
    Axis("blocks", "blocks of the model", "Blocks", {"blocks": ""}),
    Axis("views", "passes per prompt: the prompt and its views", "Views", {"views": ""}),
]


def place(axis: Axis, p: Point) -> float:
    """Where a point is on the horizontal axis."""
    return 1 + p.views if axis.size == "views" else getattr(p, axis.size)


def between(axis: Axis, points: Sequence[Point]) -> list[Point]:
    """Points from the first to the last measured one, close enough for a line."""
    if axis.size == "views":  # a prompt without views has other metrics: no line leads there
        points = [p for p in points if p.views]
    first, last = points[0], points[-1]
    low, high = place(axis, first), place(axis, last)
    values = np.geomspace(low, high, 80).tolist()
    if axis.size == "views":
        return [replace(first, views=value - 1) for value in values]
    if axis.size == "tokens":
        return [
            replace(first, tokens=value, prompts=first.prompts * first.tokens / value)
            for value in values
        ]
    return [replace(first, **{axis.size: value}) for value in values]


def draw_axis(axis: Axis, lines: Sequence[Line], found: Fit, machine: str) -> Any:
    """Seconds of the profile and of the bare passes, measured and fitted; and their ratio."""
    rows_of = {name: [line for line in lines if line["axis"] == name] for name in axis.curves}
    figure = new_figure(8.6, 3.6)
    seconds, ratio = figure.subplots(1, 2, width_ratios=[1.4, 1])
    marks = []
    for number, (name, label) in enumerate(axis.curves.items()):
        rows = sorted(rows_of[name], key=lambda line: place(axis, Point.of(line)))
        if not rows:
            continue
        x = [place(axis, Point.of(row)) for row in rows]
        cold = [place(axis, Point.of(row)) for row in rows if not row.get("warm", True)]
        curve = between(axis, [Point.of(row) for row in rows])
        along = [place(axis, p) for p in curve]
        marker, style = "os"[number], "-" if number == 0 else "--"
        for color, key, what, bare in (
            (PROFILE, "profile_s", "profile", False),
            (BARE, "bare_s", "bare passes", True),
        ):
            seconds.plot(
                along, [found.seconds(p, bare) for p in curve], style, color=color, linewidth=1.2
            )
            said = f"{what}{', ' if label else ''}{label}"
            marks += seconds.plot(
                x, [row[key] for row in rows], marker, color=color, markersize=4.5, label=said
            )
            if (
                not bare
            ):  # a first run, which also compiles kernels, is not what the line is fitted to
                seconds.plot(
                    cold,
                    [row[key] for row in rows if not row.get("warm", True)],
                    marker,
                    color="white",
                    markersize=2.5,
                )
        ratio.plot(
            along,
            [found.seconds(p) / found.seconds(p, True) for p in curve],
            style,
            color=PROFILE,
            linewidth=1.2,
        )
        ratio.plot(
            x,
            [row["profile_s"] / row["bare_s"] for row in rows],
            marker,
            color=PROFILE,
            markersize=4.5,
        )
        ratios = [row["profile_s"] / row["bare_s"] for row in rows if not row.get("warm", True)]
        ratio.plot(cold, ratios, marker, color="white", markersize=2.5)
    shown = {Point.of(line) for rows in rows_of.values() for line in rows}
    worst = max(abs(found.errors[p][0]) for p in shown if np.isfinite(found.errors[p][0]))
    marks += seconds.plot(
        [], [], color=FAINT, linewidth=1.2, label=f"fitted (profile: at most {worst:.0%} off here)"
    )
    seconds.set_title(f"{axis.title}: seconds on one {machine}", fontsize=9, loc="left")
    ratio.set_title("profile / bare passes", fontsize=9, loc="left")
    for panel in (seconds, ratio):
        orders(panel, "x", sorted({place(axis, p) for p in shown}))
        panel.set_xlabel(
            axis.label if panel is seconds else axis.label.partition(" (")[0].partition(":")[0],
            fontsize=8,
        )
        style_axis(panel)
    orders(seconds, "y")
    low, high = ratio.get_ylim()
    if high > 8:
        orders(ratio, "y")
    ratio.set_ylim(bottom=1 if high > 8 else min(1.0, low), top=max(2.0, high * 1.02))
    ratio.yaxis.set_major_formatter(lambda value, _place: f"{value:g} ×")
    figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False, fontsize=7.5)
    return figure


def draw_workers(lines: Sequence[Line]) -> Any:
    """Texts per second by Ray workers beside as many times one worker, and all that one waits
    for."""
    rows = sorted((line for line in lines if line.get("workers")), key=lambda line: line["workers"])
    here = next(line for line in lines if line.get("workers") == 0)
    alone, shared, error = cost_model.fit_workers(rows)
    x = np.array([row["workers"] for row in rows])
    dense = np.linspace(1, x.max(), 60)
    figure = new_figure(8.6, 3.3)
    rate, waiting = figure.subplots(1, 2, width_ratios=[1.55, 1])
    rate.plot(
        dense,
        rows[0]["texts_per_s"] * dense,
        ":",
        color=FAINT,
        linewidth=1.2,
        label="as many times one worker",
    )
    said = f"fitted: {alone:.2g} s + {shared:.2g} s / workers (off by {error:.0%} at most)"
    rate.plot(
        dense, here["prompts"] / (alone + shared / dense), color=PROFILE, linewidth=1.2, label=said
    )
    rate.plot(
        x,
        [row["texts_per_s"] for row in rows],
        "o",
        color=PROFILE,
        markersize=4.5,
        label="Ray workers, once they run",
    )
    rate.plot(
        [1], [here["texts_per_s"]], "D", color=BARE, markersize=4.5, label="this process alone"
    )
    waiting.plot(
        [0, *x],
        [line["all_s"] for line in (here, *rows)],
        "o-",
        color=PROFILE,
        linewidth=1.2,
        markersize=4.5,
    )
    rate.set_title("Workers of one thread each: texts per second", fontsize=9, loc="left")
    waiting.set_title("Seconds in all, with Ray's start", fontsize=9, loc="left")
    for panel in (rate, waiting):
        panel.set_xlabel(
            "workers" if panel is rate else "workers (0: this process alone)", fontsize=8
        )
        panel.set_ylim(bottom=0)
        style_axis(panel)
    rate.set_xticks(x)
    waiting.set_xticks([0, *x])
    rate.legend(frameon=False, fontsize=7, loc="upper left")
    return figure


def orders(panel: Any, which: str, ticks: Sequence[float] = ()) -> None:
    """A logarithmic axis with plain numbers: at every measured value, or where few orders are shown
    also between them."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    getattr(panel, f"set_{which}scale")("log")
    axis = getattr(panel, f"{which}axis")
    low, high = axis.get_view_interval()
    subs = (1, 2, 3, 5) if high < 20 * low else (1, 2, 5) if high < 200 * low else (1,)
    axis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(subs=subs))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(
        FuncFormatter(lambda value, _place: f"{value:,.0f}" if value >= 10 else f"{value:g}")
    )


def draw(into: Path = ROOT / "docs/images", folder: Path = RESULTS) -> list[Path]:
    """Every picture that the results hold the points of."""
    lines = cost_model.read_lines(sorted(folder.glob("*.jsonl")))
    points = [line for line in cost_model.measured(lines) if line["device"] == "cuda"]
    machine = next(line["machine"] for line in lines if line.get("on") == "cuda")
    found = cost_model.fit_lines(points, "cuda")
    figures = {
        axis.size: draw_axis(axis, points, found, machine.removeprefix("NVIDIA ")) for axis in AXES
    }
    if any(line.get("workers") for line in lines):
        figures["workers"] = draw_workers([line for line in lines if "workers" in line])
    paths = []
    for name, figure in figures.items():
        paths.append(into / f"scaling-{name}.png")
        figure.savefig(paths[-1], dpi=130)
    return paths


if __name__ == "__main__":
    print(*draw(), sep="\n")
