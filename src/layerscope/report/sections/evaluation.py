"""Evaluations, as people see them: scores on the page and in figures, the best layers in the
terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from layerscope.choose.choice import readout_word
from layerscope.core.charts import Figure
from layerscope.core.readout import DEFAULT_READOUT, READOUT_COLUMNS, Readout, readout_names
from layerscope.core.sites import layer_ranges
from layerscope.core.statistics import INTERVAL
from layerscope.report.charts import plot_charts
from layerscope.report.sources import Block, Chart, Line, Scores, Section, of_run, weights_text
from layerscope.report.text import break_at_slashes, numeric_table, sparkline
from layerscope.terminal import Console, print_notes

if TYPE_CHECKING:
    from layerscope.evaluation.run import Evaluation


def from_evaluation(run: Evaluation) -> Scores:
    """An evaluation."""
    m, scores = run.manifest, run.scores.copy()
    model, c = m["model"], m["conventions"]
    for table in (scores, gains := run.gains.copy()):
        table["readout"] = readout_names(table)
        subsets = zip(table["task"], table["subset"], strict=True)
        table["name"] = [
            str(task) if subset in ("default", "") else f"{task} ({subset})"
            for task, subset in subsets
        ]
    keys = ["name", "split", "readout", "layer"]
    gained = gains[[*keys, "gain", *INTERVAL, "tied_best"]]
    table = scores[[*keys, "score"]].merge(gained, on=keys, how="left")
    several = table.groupby("name")["split"].nunique()
    many = set(several[several > 1].index)
    table["task"] = [
        f"{n}, {s}" if n in many else n for n, s in zip(table["name"], table["split"], strict=True)
    ]
    table["tied"] = [value is True or value == 1 for value in table["tied_best"]]
    kinds = (
        dict(zip(table["task"], scores["task_type"], strict=True)) if "task_type" in scores else {}
    )
    specs = m.get("tasks", {})
    facts = {
        "kind": "evaluation",
        "tasks": ", ".join(specs) if len(specs) <= 6 else f"{len(specs)} tasks",
        "longest text": f"{c['max_length']} tokens",
        "length of vectors": "1" if c.get("unit_length") else "as they come",
        "items": ", ".join(f"{t}: {s.get('items')}" for t, s in specs.items())
        if len(specs) <= 6
        else "all",
        "part of each task": next(
            (f"{s['limit']} items" for s in specs.values() if s.get("limit")), "all of it"
        ),
        "score": c.get("score"),
        "seed": c.get("seed"),
        "intervals": c.get("intervals"),
        "weights": weights_text(model),
        "precision": model.get("dtype"),
        "layerscope": m.get("layerscope"),
    }
    undefined = [str(line) for line in m["undefined"]]
    warnings = [
        *map(str, m["warnings"]),
        *(f"undefined, left out: {line}" for line in undefined[:3]),
    ]
    warnings += (
        [f"undefined, left out: {len(undefined) - 3} more readouts, in manifest.json"]
        if len(undefined) > 3
        else []
    )
    warnings += [f"{f['task']} could not be scored: {f['reason']}" for f in m["failed"]]
    warnings += [
        f"{n} of {m['counts']['texts']} texts were cut to {c['max_length']} tokens under template {template!r}."
        for template, n in (m["counts"].get("truncated") or {}).items()
        if n and not any("were cut" in w for w in m["warnings"])
    ]
    own = {**of_run(run), "facts": facts, "warnings": warnings}
    shown = table[["task", "readout", "layer", "score", "gain", *INTERVAL, "tied"]]
    tasks, readouts = (list(dict.fromkeys(names)) for names in (table["task"], scores["readout"]))
    return Scores(str(model["name"]), int(model["n_blocks"]), shown, tasks, kinds, readouts, **own)


SECTION = Section("evaluation", from_evaluation)


def score_chart(score: Scores) -> Chart:
    """Mean score by layer, one line per readout, the reference first."""
    lines = []
    for readout in sorted(score.readouts, key=lambda name: name != score.reference):
        mean = 100 * score.mean(readout)
        lines.append(
            Line(readout, [int(layer) for layer in mean.index], list(mean), blocks=score.n_blocks)
        )
    what = score.tasks[0] if len(score.tasks) == 1 else f"mean over {score.mean_says}"
    return Chart(f"{score.label or score.model}: {what}", lines, "main score × 100")


def plot_scores(run: Evaluation) -> Figure:
    """Draw the mean score by layer, one line per readout."""
    score = from_evaluation(run)
    return plot_charts([score_chart(score)], f"{score.model}, {len(score.tasks)} tasks")


def scores_block(score: Scores, every_readout: bool = True) -> Block:
    """An evaluation where it is shown alone: the mean by layer, and each task's best layer, under
    its best readout or all."""
    best: dict[Any, list[list[Any]]] = {}
    for readout in score.readouts:
        scored = score.table[score.table["readout"] == readout].dropna(subset=["score"])
        for task, group in scored.groupby("task", sort=False):
            top, last = (
                group.iloc[int(group["score"].argmax())],
                group.iloc[int(group["layer"].argmax())],
            )
            gain = f"{100 * top['gain']:+.1f}" if math.isfinite(top["gain"]) else "–"
            tied = ", ".join(layer_ranges([int(k) for k in group.loc[group["tied"], "layer"]]))
            row = [
                task,
                readout,
                f"{100 * last['score']:.2f}",
                f"{100 * top['score']:.2f}",
                int(top["layer"]),
                gain,
                tied,
            ]
            best.setdefault((task, readout) if every_readout else task, []).append(row)
    rows = [max(some, key=lambda row: float(row[3])) for some in best.values()]
    table = pd.DataFrame(
        rows, columns=["task", "readout", "last", "best", "layer", "gain over last", "tied"]
    )
    title = f"{score.model}: {len(score.tasks)} tasks × {len(score.readouts)} readouts, every layer"
    return Block(
        "evaluation",
        title,
        score.model,
        [PICKED],
        [score_chart(score)],
        {"": table},
        warnings=score.warnings,
        inline=[""],
    )


PICKED = "the best was picked on these items, so its gain is too high; `layerscope select` says what can be promised"
_NARROW = 24  # characters that a terminal of 80 leaves for a readout beside the numbers


def print_evaluation(run: Evaluation, console: Console | None = None) -> None:
    """Print an evaluation for a person. Scores are MTEB's main scores × 100."""
    console = console or Console()
    m = run.manifest
    console.print(
        f"\n[bold]{escape(str(m['model']['name']))}[/]  {m['model']['n_blocks']} blocks · {m['counts']['texts']} distinct texts, "
        f"{m['counts']['encoded']} encoded now · up to {m['conventions']['max_length']} tokens · "
        f"{'vectors of length 1 · ' if m['conventions'].get('unit_length') else ''}scores × 100"
    )
    console.print(_best(run))
    console.print(
        _readouts(run, width=31 if console.width >= 100 else 24, names=max(20, console.width - 50))
    )
    for line in m["undefined"][:3]:
        console.print(f"[yellow]undefined[/] {escape(line)}")
    if len(m["undefined"]) > 3:
        console.print(
            f"[yellow]undefined[/] … and {len(m['undefined']) - 3} more, in manifest.json"
        )
    print_notes(console, m["warnings"])
    for failure in run.failed:
        console.print(f"[red]failed[/] {escape(failure['task'])}: {escape(failure['reason'])}")


def gain_parts(readout: str, of_readout: float, of_layer: float) -> str:
    """A gain over the last layer of the default readout, told by its causes, in points.

    >>> gain_parts("one-word/last/raw/keep/none", 43.4, 0.4)
    'template +43.4, layer +0.4'
    """
    return f"{readout_word(readout)} {of_readout:+.1f}, layer {of_layer:+.1f}"


def _best(run: Evaluation) -> Table:
    """The best layer of each task. With several readouts the gain is over what a user has who
    changes nothing: the last layer, read the default way; the readout stands below the task's name,
    the ties below the gain."""
    rows: list[dict[str, Any]] = run.best().to_dict(orient="records")  # type: ignore[assignment]
    many = run.scores.groupby(READOUT_COLUMNS).ngroups > 1
    against = (
        "default_" if many and all(math.isfinite(row["gain_over_default"]) for row in rows) else ""
    )
    than = "default" if against else "last"
    # where it is narrow, words give way, not numbers
    table = numeric_table("task", than, "best", "@ layer", f"gain over {than}", words=["task"])
    if not many:
        table.add_column("tied for best", min_width=13)
    for row in rows:
        name = escape(
            row["task"] if row["subset"] == "default" else f"{row['task']} ({row['subset']})"
        )
        gained = f"{100 * row['gain_over_default' if against else 'gain']:+.1f}"
        numbers = [
            f"{100 * row[f'{against}last']:.2f}",
            f"{100 * row['best']:.2f}",
            str(row["layer"]),
        ]
        if against and row["readout"] != DEFAULT_READOUT:
            of_layer = 100 * row["gain"]
            parts = gain_parts(row["readout"], 100 * row["gain_over_default"] - of_layer, of_layer)
            gained += f"\n[dim]{parts}[/]"
        tied, readout = ", ".join(layer_ranges(row["tied"])), escape(row["readout"])
        if many:
            table.add_row(
                f"{name}\n[dim]{break_at_slashes(readout, _NARROW)}[/]",
                *numbers,
                f"{gained}\n[dim]ties: {tied}[/]",
            )
        else:
            table.add_row(name, *numbers, gained, tied)
    table.caption = PICKED + (
        "\ndefault: the last layer under plain/mean/applied/keep/none" if against else ""
    )
    table.caption_justify = "left"
    return table


def _readouts(run: Evaluation, width: int, names: int) -> Table:
    """Mean over tasks at every layer, one line per readout, the best first; curves of up to `width`
    characters."""
    table = numeric_table(
        "mean over tasks", "layer 0 → last", "best", "last", words=["mean over tasks"]
    )
    lines = []
    for key, group in run.scores.groupby(READOUT_COLUMNS):
        by_task = group.groupby(["task", "layer"])["score"].mean().unstack("task")
        # a layer that is undefined for a task has no mean
        lines.append(
            (
                Readout(*map(str, key)).name,
                by_task.index.to_numpy(),
                by_task.to_numpy().mean(axis=1),
            )
        )
    known = [line for line in lines if np.isfinite(line[2]).any()]
    for name, layers, means in sorted(known, key=lambda line: -float(np.nanmax(line[2])))[:12]:
        at = int(np.nanargmax(means))
        last = f"{100 * means[-1]:.2f}" if math.isfinite(means[-1]) else "–"
        table.add_row(
            escape(break_at_slashes(name, names)),
            sparkline(means, width),
            f"{100 * means[at]:.2f} @ {layers[at]}",
            last,
        )
    return table
