"""Evaluations, as people see them: scores on the page and in figures, the best layers in the
terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.choose.choice import Choice
from layerscope.choose.select import select
from layerscope.core.charts import Chart, Figure, Line
from layerscope.core.readout import DEFAULT_READOUT, describe_readout, readout_names
from layerscope.core.sites import layer_ranges
from layerscope.core.statistics import INTERVAL
from layerscope.errors import LayerscopeError
from layerscope.report.charts import INK, altair, draw_ties, plot_charts
from layerscope.report.section import Section
from layerscope.report.text import break_at_slashes, numeric_table, sparkline
from layerscope.report.words import MEAN, PICKED, weights
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation

_NARROW = 24  # characters that a terminal of 80 leaves for a readout beside the numbers
_MOST = 12  # readouts in the terminal
_FEW = 3


def section(run: Evaluation) -> Section:
    """Return an evaluation with the mean by layer and the best layer of each task."""
    rows = score_rows(run)
    tasks = [task for task in rows["task"].unique() if task != MEAN]
    readouts = rows["readout"].unique()
    title = f"{run.name}: {len(tasks)} tasks × {len(readouts)} readouts, every layer"
    evaluation = Section.of(
        run,
        title,
        [PICKED],
        tables={"Best layer of each task": best_layers(rows)},
        inline=["Best layer of each task"],
        facts=_facts(run),
        warnings=_warnings(run),
        blocks=int(run.manifest["model"]["n_blocks"]),
        choice=_choice(run),
        rows=rows,
    )
    evaluation.charts = [score_chart([evaluation], main=True)]
    return evaluation


def _choice(run: Evaluation) -> Choice | None:
    """Return the choice by these scores; None where they allow none, such as those of one layer."""
    try:
        return select(run)
    except LayerscopeError:
        return None


def score_rows(run: Evaluation) -> pd.DataFrame:
    """Return scores and gains over the last layer in points, by task, readout and layer.

    Rows of the mean over tasks come first if there are several tasks. A task's name has its subset
    and split where they tell tasks apart.
    """
    keys = ["task", "split", "subset", "readout", "layer"]
    scores = run.scores.assign(readout=readout_names(run.scores))
    gains = run.gains.assign(readout=readout_names(run.gains))
    gains = gains[[*keys, "gain", *INTERVAL, "tied_best"]]
    rows = scores[[*keys, "score"]].merge(gains, on=keys, how="left")
    has_subset = ~rows["subset"].isin(["default", ""])
    names = rows["task"].where(~has_subset, rows["task"] + " (" + rows["subset"] + ")")
    has_splits = rows.groupby(names)["split"].transform("nunique") > 1
    rows["task"] = names.where(~has_splits, names + ", " + rows["split"])
    rows["tied"] = [tied is True or tied == 1 for tied in rows["tied_best"]]
    rows = rows[["task", "readout", "layer", "score", "gain", *INTERVAL, "tied"]]
    for name in ("score", "gain", *INTERVAL):
        rows[name] = 100 * rows[name].astype(float)
    if rows["task"].nunique() == 1:
        return rows
    # a layer that is undefined for a task has no mean
    means = rows.groupby(["readout", "layer"], sort=False)["score"].agg(
        lambda values: values.mean(skipna=False)
    )
    mean = means.reset_index().assign(task=MEAN, tied=False)
    last = mean.sort_values("layer").groupby("readout")["score"].last()
    mean["gain"] = mean["score"] - mean["readout"].map(last)
    return pd.concat([mean, rows], ignore_index=True)


def _facts(run: Evaluation) -> dict[str, object]:
    """Return the conventions of an evaluation."""
    manifest = run.manifest
    conventions = manifest["conventions"]
    tasks = manifest.get("tasks", {})
    limits = [f"{task['limit']} items" for task in tasks.values() if task.get("limit")]
    names = ", ".join(tasks)
    return {
        "kind": "evaluation",
        "tasks": names if len(tasks) <= 6 else f"{len(tasks)} tasks",
        "longest text": f"{conventions['max_length']} tokens",
        "length of vectors": "1" if conventions.get("unit_length") else "as they come",
        "part of each task": limits[0] if limits else "all of it",
        "score": conventions.get("score"),
        "seed": conventions.get("seed"),
        "intervals": conventions.get("intervals"),
        "weights": weights(manifest["model"]),
        "precision": manifest["model"].get("dtype"),
        "layerscope": manifest.get("layerscope"),
    }


def _warnings(run: Evaluation) -> list[str]:
    """Return the run's warnings, what could not be scored, and which texts were cut."""
    manifest = run.manifest
    warnings = [str(text) for text in manifest["warnings"]]
    undefined = [str(text) for text in manifest["undefined"]]
    warnings += [f"undefined, left out: {text}" for text in undefined[:_FEW]]
    if len(undefined) > _FEW:
        count = len(undefined) - _FEW
        warnings.append(f"undefined, left out: {count} more readouts, in manifest.json")
    warnings += [f"{f['task']} could not be scored: {f['reason']}" for f in manifest["failed"]]
    return warnings


def best_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the best layer of each task under each readout, in points."""
    best = []
    tasks = rows[(rows["task"] != MEAN) & rows["score"].notna()]
    for (readout, task), curve in tasks.groupby(["readout", "task"], sort=False):
        layers = curve.sort_values("layer")
        top = layers.iloc[int(layers["score"].argmax())]
        points = [round(float(top[name]), 1) for name in ("gain", *INTERVAL)]
        tied = ", ".join(layer_ranges(layers.loc[layers["tied"], "layer"].astype(int).tolist()))
        scores = [round(float(layers["score"].iloc[-1]), 2), round(float(top["score"]), 2)]
        best.append([task, readout, *scores, int(top["layer"]), *points, tied])
    head = ["task", "readout", "last", "best", "layer", "gain", *INTERVAL, "tied layers"]
    return pd.DataFrame(best, columns=head)


def score_chart(sections: Sequence[Section], main: bool = False) -> Chart:
    """Return scores by layer, a line per readout, the default one first.

    A switch of the page shows one task; with `main` there is the mean alone.
    """
    several = len(sections) > 1
    lines = []
    for run in sections:
        groups = dict(iter(run.rows.groupby(["task", "readout"], sort=False)))
        main_task = run.rows["task"].iloc[0]
        for (task, readout), curve in sorted(
            groups.items(), key=lambda item: item[0][1] != DEFAULT_READOUT
        ):
            if main and task != main_task:
                continue
            name = str(readout) if main else describe_readout(str(readout))
            if several:
                name = f"{run.label} · {name}" if run.rows["readout"].nunique() > 1 else run.label
            values = list(curve["score"])
            tags = {"task": str(task)}
            lines.append(Line(name, list(curve["layer"]), values, blocks=run.blocks, tags=tags))
    title = "Score by layer"
    if main:
        title = f"{sections[0].model}: {sections[0].rows['task'].iloc[0]}"
    return Chart(title, lines, "main score × 100")


def score_cells(sections: Sequence[Section]) -> pd.DataFrame:
    """Return a row per task and layer for the grid of gains, with its words."""
    frames = []
    for run in sections:
        rows = run.rows.dropna(subset=["score"])
        best = rows.groupby(["task", "readout"])["score"].idxmax()
        cells = rows.assign(
            by_evaluation=run.label,
            by_readout=rows["readout"],
            name=rows["task"],
            best=rows.index.isin(best),
            words=[_words(row) for row in rows.to_dict("records")],
        )
        frames.append(cells)
    columns = ["by_evaluation", "by_readout", "name", "layer", "gain", "tied", "best", "words"]
    return pd.concat(frames, ignore_index=True)[columns]


def _words(row: dict[Any, Any]) -> str:
    """Return a cell of the grid in words, for a tooltip."""
    words = f"{row['task']} · layer {row['layer']} · {row['score']:.2f} · {row['gain']:+.1f}"
    low, high = row[INTERVAL[0]], row[INTERVAL[1]]
    if low == low:
        words += f" [{low:+.1f}, {high:+.1f}]"
    return f"{words} over the last layer{' · tied with the best' if row['tied'] else ''}"


def score_grid(cells: pd.DataFrame) -> Figure:
    """Return a grid of tasks by layers: gains over the last layer, the best outlined."""
    library = altair()
    tasks = list(cells["name"].unique())
    axis = library.Axis(labelAngle=0, labelOverlap=True)
    scale = library.Scale(range=["#b8500a", "#f1f1ee", "#0a5a94"], domainMid=0, interpolate="rgb")
    legend = library.Legend(orient="top", gradientLength=160)
    # not by a list of names: Vega-Lite would write them into an expression
    order = library.EncodingSortField("order", op="min")
    color = library.Color("gain:Q", title="points over the last layer", scale=scale, legend=legend)
    base = library.Chart(cells.assign(order=cells["name"].map(tasks.index))).encode(
        x=library.X("layer:O", title="layer", axis=axis),
        y=library.Y("name:N", sort=order, title=None, axis=library.Axis(labelLimit=180)),
        tooltip="words:N",
        description="words:N",
    )
    best = base.transform_filter("datum.best").mark_rect(
        filled=False, stroke=INK, strokeWidth=2, opacity=1
    )
    layers = [base.mark_rect().encode(color=color), draw_ties(base), best]
    return library.layer(*layers).properties(width="container", height=20 * len(tasks))


def plot_scores(run: Evaluation) -> Figure:
    """Draw the mean score by layer, one line per readout."""
    evaluation = section(run)
    tasks = [task for task in evaluation.rows["task"].unique() if task != MEAN]
    return plot_charts(evaluation.charts, f"{evaluation.model}, {len(tasks)} tasks")


def print_evaluation(run: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation for a person. Scores are MTEB's main scores × 100."""
    console = console or Console()
    manifest = run.manifest
    counts = manifest["counts"]
    conventions = manifest["conventions"]
    unit = "vectors of length 1 · " if conventions.get("unit_length") else ""
    console.print(
        f"\n[bold]{escape(run.name)}[/]  {manifest['model']['n_blocks']} blocks · "
        f"{counts['texts']} distinct texts, {counts['encoded']} encoded now · up to "
        f"{conventions['max_length']} tokens · {unit}scores × 100"
    )
    console.print(_best_table(run))
    console.print(_readout_table(run, console.width))
    for text in manifest["undefined"][:_FEW]:
        console.print(f"[yellow]undefined[/] {escape(str(text))}")
    if len(manifest["undefined"]) > _FEW:
        count = len(manifest["undefined"]) - _FEW
        console.print(f"[yellow]undefined[/] … and {count} more, in manifest.json")
    print_notes(console, manifest["warnings"])
    for failure in run.failed:
        console.print(f"[red]failed[/] {escape(failure['task'])}: {escape(failure['reason'])}")


def _best_table(run: Evaluation) -> Table:
    """Return the best layer of each task.

    With several readouts the gain is over the default readout's last layer. The readout then stands
    below the task's name, the ties below the gain.
    """
    best = run.best()
    has_several = len(set(readout_names(run.scores))) > 1
    over_default = has_several and np.isfinite(best["gain_over_default"].astype(float)).all()
    baseline = "default" if over_default else "last"
    headings = ["task", baseline, "best", "@ layer", f"gain over {baseline}"]
    # where it is narrow, words give way, not numbers
    table = numeric_table(*headings, words=["task"])
    if not has_several:
        table.add_column("tied for best", min_width=13)
    for row in best.to_dict("records"):
        name = row["task"] if row["subset"] == "default" else f"{row['task']} ({row['subset']})"
        before = row["default_last"] if over_default else row["last"]
        gain = row["gain_over_default"] if over_default else row["gain"]
        cells = [f"{100 * before:.2f}", f"{100 * row['best']:.2f}", str(row["layer"])]
        tied = ", ".join(layer_ranges(row["tied"]))
        if has_several:
            readout = break_at_slashes(escape(row["readout"]), _NARROW)
            cells = [f"{escape(name)}\n[dim]{readout}[/]", *cells]
            table.add_row(*cells, f"{100 * gain:+.1f}\n[dim]ties: {tied}[/]")
        else:
            table.add_row(escape(name), *cells, f"{100 * gain:+.1f}", tied)
    table.caption = PICKED
    if over_default:
        table.caption += f"\ndefault: the last layer under {DEFAULT_READOUT}"
    table.caption_justify = "left"
    return table


def _readout_table(run: Evaluation, width: int) -> Table:
    """Return the mean over tasks at every layer, one line per readout, the best first."""
    table = numeric_table(MEAN, "layer 0 → last", "best", "last", words=[MEAN])
    scores = run.scores.assign(readout=readout_names(run.scores))
    by_task = scores.groupby(["readout", "layer", "task"])["score"].mean().unstack("task")
    means = 100 * by_task.mean(axis=1, skipna=False)
    curves = {name: curve.droplevel(0) for name, curve in means.groupby("readout")}
    defined = {name: curve for name, curve in curves.items() if curve.notna().any()}
    ranked = sorted(defined, key=lambda name: -float(defined[name].max()))
    for name in ranked[:_MOST]:
        curve = defined[name]
        last = float(curve.iloc[-1])
        table.add_row(
            escape(break_at_slashes(str(name), max(20, width - 50))),
            sparkline(curve, 31 if width >= 100 else 24),
            f"{curve.max():.2f} @ {curve.idxmax()}",
            f"{last:.2f}" if math.isfinite(last) else "–",
        )
    return table
